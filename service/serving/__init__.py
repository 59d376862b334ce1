"""Predictions over HTTP, from the model learned here or from the newest snapshot."""

__all__ = ["app", "connections", "models", "page", "predictor", "report", "requests", "server", "tokens"]
