"""What is saved, and when."""
