"""Kafka, through the public interface of aiokafka.

Start with `topic`: one topic as the learning loop sees it. `clients` has the clients of a process that need no group.
`cluster` makes every client, with `security`, and reads a topic for the commands; `fetching/` reads records and
`membership/` keeps this process in its group. `health` checks Kafka once a second. `log_queries` asks brokers about a
log, by requests of aiokafka and of `metadata`, and `failures` says why a connection failed.
"""
