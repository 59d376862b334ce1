"""Faults on real servers: nothing lost, nothing learned twice. `make test-all` runs all of them."""
