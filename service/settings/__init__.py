"""The settings, from a file, the environment and the command line.

Start with `load`. `section` is what the tables of the file share. `connections` has `[kafka]`, `[redis]` and `[http]`,
and `model` has the tables of models.
"""
