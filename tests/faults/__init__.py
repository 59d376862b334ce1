"""Faults on real servers: nothing lost, nothing learned twice. `make faults` runs all of them."""
