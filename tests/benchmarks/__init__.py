"""The figures of docs/performance.md, each beside its baseline: `make bench`."""
