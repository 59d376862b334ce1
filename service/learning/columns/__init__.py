"""Feature names as columns of the arrays.

Start with `columns`, which gives each name its column. `name_table` is the compiled hash table of names, and `hashing`
chooses the column of a model that keeps no names.
"""
