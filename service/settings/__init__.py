"""The settings, from a file, the environment and the command line.

Start with `load`. `section` is what the tables of the file share; `kafka`, `redis`, `http` and `model` are the tables.
"""
