"""Records out of Kafka, in order, once: the consumer group, the learning loop, dead letters."""

__all__ = [
    "cluster", "coordinator", "cut", "dead_letters", "framing", "group", "lasting", "learn", "oauth", "outbox",
    "recognise", "records", "security", "topic_id",
]  # fmt: skip
