"""Fetches record batches from the brokers and reads them.

Start with `fetcher`, which asks the leaders. `record_batch`, `record_framing` and `compression` read a response;
`offset_sequence` decides by their offsets which batches may be learned.
"""
