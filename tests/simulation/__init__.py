"""The loop that learns and the keeper that saves, stepped by hand under a seed through faults: see `world`."""
