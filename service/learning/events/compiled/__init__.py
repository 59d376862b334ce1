"""The compiled reader: a buffer of values to rows of names and numbers. It accepts or declines, and never rejects.

Start with `compiled_readers`: `RowReader` drives `json_parser`, and `VectorReader` reads vectors of doubles. The parser
reads tokens (`json_tokens`, `time_parsing`) and finds the members that matter in a `path_tree`. A scan with such a tree
cuts out the members that the careful reader reads.
"""
