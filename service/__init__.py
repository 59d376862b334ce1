"""Perceptron Service: a linear classifier that learns from a Kafka topic while it serves predictions."""

__version__ = "0.2.0"
