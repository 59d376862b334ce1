"""The compiled loops that learn.

Start with `kernel`: score, step and update of each event. `scaling` and `averaging` are the running mean and variance
of the features and the averages of the weights, which a model may have.
"""
