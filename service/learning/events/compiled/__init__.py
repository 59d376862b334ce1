"""The compiled reader: a buffer of values to rows of names and numbers. It accepts or declines, and never rejects.

Start with `row_reader`, which drives `json_parser`. The parser reads tokens (`json_tokens`, `float_parsing`,
`time_parsing`) and finds the members that matter in a `path_tree`. `vector_reader` reads vectors of doubles.
`json_scan` cuts out the members that the careful reader reads.
"""
