"""Observations of a model, which are no part of its state: how well it learns, and what the theory promises.

Start with `observations`, which follows a model. `prequential`, `confusion` and `last_events` describe its latest
events and how often requests got the right answer, `confidence_sequences` says how sure an accuracy is, `mistake_bound`
what the theorem says, `feature_watch` which features change or are missing, and `advice` what to try.
"""
