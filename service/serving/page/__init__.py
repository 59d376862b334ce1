"""The page at `/`.

`routes` serves its files. `page_state` makes the body that they poll, with the figures over time that `history` keeps.
"""
