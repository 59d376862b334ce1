"""Learning from a file instead of a log.

`batch_training` makes many passes over the events. `separability` decides by a linear program whether any weights
separate them.
"""
