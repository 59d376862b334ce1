"""What can be set, and where it comes from."""
