"""One process."""
