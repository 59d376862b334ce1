"""Kafka, through the public interface of aiokafka.

Start with `model_log`: a model's log as the learning loop sees it. `cluster` makes every client, and reads a log for
the commands; `fetching/` reads records and `membership/` keeps this process in its group. `topic_writer` writes what
requests bring. `health` checks Kafka once a second. `log_queries` asks brokers about a log. `connection` has how this
process logs in, and says why that failed.
"""
