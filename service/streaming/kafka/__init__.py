"""Kafka by the public interface of aiokafka.

`cluster` makes every client. `group` is this process in its consumer group, `topic` one topic of it as `ports.Log`, and
`health` looks at all of it once a second. `fetcher` reads: `record_batch` and `record_framing` say what a response
holds, and `offset_sequence` what of it may be learned.
"""
