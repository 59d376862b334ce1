"""The page at `/`.

`routes` serves its files. `page_state` makes the body that they poll, with figures over time.
"""
