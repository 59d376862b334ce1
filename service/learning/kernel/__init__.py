"""The compiled loops that learn.

Start with `kernel`: score, step and update of each event, and the averages of the weights that a model may have.
`scaling` is the running mean and variance of the features.
"""
