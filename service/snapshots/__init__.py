"""Snapshots: all state of a model at one point of its log, as a small head and large blobs.

Start with `head` and `keeper`, which decides when to save and what a refusal means. `blobs` and `codec` make bytes of
arrays and heads. State and observations are written by `head` and read back by `restore`. `rollback` reads kept
versions, and makes one the newest. `redis/` stores them, behind `ports`.
"""
