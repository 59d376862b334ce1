"""What is measured, beside its baseline in the same run."""
