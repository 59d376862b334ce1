"""Records out of Kafka, and dead letters."""
