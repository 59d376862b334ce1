"""Records out of Kafka, in order, each learned once.

Start with `learn_loop`, and `ports`, the interfaces that it needs. `resume_check` decides whether a stored model may be
continued; `dead_letters` makes a `message` of a rejected record, and `message_queue` sends messages until they are
acknowledged. `kafka/` is the real log.
"""
