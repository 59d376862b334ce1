"""Snapshots: all state of a model at one point of its log, as a small head and large blobs.

Start with `head` and `keeper`, which decides when to save and what a refusal means. `blobs` makes bytes of arrays.
`content` makes a head of a learner's state, and a learner of a head. `rollback` reads kept versions, and makes one the
newest. `redis/` stores them, behind `ports`.
"""
