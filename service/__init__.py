"""Perceptron Service: a linear classifier that learns from a Kafka topic while it serves predictions."""

from importlib.metadata import version

__version__ = version("perceptron-service")
