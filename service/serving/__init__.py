"""Predictions over HTTP, from the model learned here or from the newest snapshot."""
