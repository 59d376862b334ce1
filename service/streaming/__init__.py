"""Records out of Kafka, in order, each learned once.

Start with `learn_loop`, and `ports`, the interfaces that it needs. `resume_check` decides whether a stored model may be
continued; `dead_letters` are rejected records, and `message_queue` sends them. `kafka/` is the real log.
`records` are what it returns, `merge` puts them in the order of their times, and `supervision` runs lasting tasks.
"""
