"""Files: the events in them, and results that are written whole.

`formats` says which format a file has and how its events become records; `readers` reads each format. `atomic_write`
writes a file.
"""
