"""The commands on a model that the store has.

Start with `inspect`, which reads the newest snapshot for the others too. `export` and `verify` only read, `changes` has
those that change what the store has.
"""
