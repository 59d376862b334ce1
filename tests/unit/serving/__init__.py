"""What a prediction's answer says."""
