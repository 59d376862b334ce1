"""Tests on a real Kafka and real Redis."""
