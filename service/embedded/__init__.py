"""A real Kafka and a real Redis from packages, for the demo and the tests.

Start with `servers`. `demo` is `perceptron demo`, and makes its events.
"""
