"""Answers predictions from the models that are learned here, and from the newest snapshots of others.

Start with `models`. `request_parser` reads a request's features, `scoring` answers with `predictions`, and `model_info`
describes a model. `http/` and `page/` build on these modules, which know no web framework.
"""
