"""The commands that run once; `stored/` has those on a stored model, `suggest/` has `suggest`.

Each command is a module of its name, such as `check`. `client` has `healthcheck` and `predict`, which ask a running
service. `tables` prints the tables of several commands. `files` reads the events of files, and writes files whole.
"""
