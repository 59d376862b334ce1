"""Records out of Kafka, in order, once: the consumer group, the learning loop, dead letters."""
