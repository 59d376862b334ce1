"""Kafka's batches, offsets, groups and logins."""
