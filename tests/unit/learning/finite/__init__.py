"""Many passes over a file, bounds, separability."""
