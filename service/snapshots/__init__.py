"""Snapshots: all state of a model at one point of its log, as a small head and large blobs.

Start with `head` and `keeper`, which decides when to save and what a refusal means. `blobs` and `codec` make bytes of
arrays and heads, `restore` makes a learner of them, and `rollback` makes a kept version the newest. `redis/` stores
them, behind `ports`.
"""
