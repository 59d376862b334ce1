"""Learners: rules, weights, candidates, digests."""
