"""Snapshots in Redis.

Start with `store`: every key and every command; `commit.lua` is a save, `look.lua` reads digests. `connection` reaches
the server, and says why it cannot be reached and what is wrong with its configuration.
"""
