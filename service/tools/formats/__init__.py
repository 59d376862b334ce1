"""Events in files.

`formats` says which format a file has and how its events become records; `readers` reads each format.
"""
