"""What the service reports about itself.

`metrics` declares every metric and `logging` the log's format. `rejections` notices that most records are rejected. No
other part of the service is imported: it gets callables.
"""
