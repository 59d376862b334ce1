"""Credentials of connections.

`tls` makes the contexts for Kafka and Redis, `certificate` the one of our HTTP server. `reloading` reads a file again
when it changes, and `http` opens URLs with a context.
"""
