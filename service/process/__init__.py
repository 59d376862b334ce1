"""One running process.

Start with `service`, the composition root: it makes all parts and runs their tasks. `observer` reports on models,
`model_topics` makes what writes to topics, and `scheduler` decides who has the event loop's next turn.
"""
