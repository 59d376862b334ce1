"""Predictions from the model that is learned here, or from its newest snapshot.

Start with `models`. `request_parser` reads a request's features, `scoring` answers with `predictions`, and `model_info`
describes a model. `http/` and `page/` stand on these, which know no web framework.
"""
