"""Answers predictions from the models that are learned here, and from the newest snapshots of others.

Start with `models`. `predictions` reads requests for predictions, and `scoring` answers them. `model_info` describes a
model. `posting` makes records of posted events and labels, and of predictions.
`http/` and `page/` build on these modules, which are independent of any web framework.
"""
