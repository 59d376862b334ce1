"""Record batches from the brokers' bytes.

Start with `fetcher`, which asks the leaders. `record_batch`, `record_framing` and `compression` read a response;
`offset_sequence` decides which batches may be learned, by their offsets.
"""
