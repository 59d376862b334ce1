"""A real Kafka and a real Redis from packages, for the demo and the tests."""

__all__ = ["demo"]
