"""Learning from a file instead of a log.

Start with `batch_training`, which makes many passes over the events and says how many updates they can make at most.
`separability` decides by a linear program whether any weights separate the events.
"""
