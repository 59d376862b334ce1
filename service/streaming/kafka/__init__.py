"""Kafka, through the public interface of aiokafka.

Start with `topic`, one topic as the learning loop sees it. `cluster` makes every client, with `security`;
`fetching/` reads records and `membership/` keeps this process in its group. `health` checks Kafka once a second,
`log_queries` and `metadata` send it questions, and `failures` says why a connection failed.
"""
