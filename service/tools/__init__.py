"""The commands that run once, most of them a file each.

`stored_models` has rollback and reset, and `client` has healthcheck, next to what other commands share with them.
`tables` prints the tables of several commands, and `formats/` reads and writes files.
"""
