"""The commands on a model that the store has.

`stored_model` has what they share. `inspect`, `export` and `verify` only read, `changes` has those that change what the
store has.
"""
