"""The commands that run once; `stored/` has those on a stored model, `suggest/` has `suggest`.

`client` has `healthcheck` and `predict`, which ask a running service. `tables` prints the tables of several commands.
`files` reads the events of files, and writes files whole.
"""
