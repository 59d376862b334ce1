"""The page at `/`.

`routes` serves its files. `page_state` makes the body that they poll, with the figures over time that `history` keeps
and the event that `example_event` fills the form with.
"""
