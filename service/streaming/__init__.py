"""Records out of Kafka, in order, once: the consumer group, the learning loop, dead letters."""

__all__ = ["cut", "dead_letters", "kafka", "lasting", "learn", "outbox", "ports", "recognise", "records"]
