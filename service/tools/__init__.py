"""The commands that run once; `stored/` has those on a stored model, `suggest/` has `suggest`.

`client` has `healthcheck`, and what `predict` needs of HTTP. `tables` prints the tables of several commands, and
`formats/` reads and writes files.
"""
