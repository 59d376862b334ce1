"""The commands on a model that the store has, a file each.

`newest_snapshot` reads it for `inspect`, `export` and `verify`. `rollback`, `amend` and `reset` change what
the store has.
"""
