"""Feature names as columns of the arrays.

Start with `columns`, which gives each name its column, or hashes it to one. `name_table` is the compiled hash table of
names.
"""
