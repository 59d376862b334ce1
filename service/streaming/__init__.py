"""Records out of Kafka, in order, each learned once.

Start with `learn_loop`, and `ports`, which it stands on. `resume_check` decides whether a stored model may be
continued; `dead_letters`, `truncation` and `outbox` put rejected records aside. `kafka/` is the real log.
"""
