"""The page at `/`.

`routes` serves its files, which hold nothing of any model, so they need no token. `page_state` is the body that they
poll, `history` a model's figures over time, and `example_event` fills the form.
"""
