"""Answers predictions from the models that are learned here, and from the newest snapshots of others.

Start with `models`. `predictions` says what a protocol and `scoring` exchange, and `model_info` describes a model.
`posting` makes records of posted events and labels, and of predictions.
`http/` and `page/` build on these modules, which are independent of any web framework.
"""
