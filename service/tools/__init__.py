"""The commands that run once, a file each.

`client`, `stored_models`, `atomic_write` and `formats/` are what several of them share.
"""
