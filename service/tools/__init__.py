"""The commands that run once, a file each.

Several of them share `client`, `stored_models`, `atomic_write`, `tables` and `formats/`.
"""
