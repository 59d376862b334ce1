"""Credentials of connections.

`tls` makes contexts for Kafka, Redis and our HTTP server. `bearer_tokens` checks the tokens of requests. `reloading`
reads a file again when it changes, and `http` opens URLs with a context.
"""
