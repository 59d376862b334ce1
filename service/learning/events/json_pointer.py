"""JSON Pointers (RFC 6901) that go through objects."""

from collections.abc import Sequence

Path = tuple[str, ...]
"""The names of a pointer, the outermost first. The path to the whole record is empty."""


def parse_pointer(pointer: str) -> Path:
    """The names that a pointer goes through.

    >>> parse_pointer("/after/a~1b"), parse_pointer("")
    (('after', 'a/b'), ())
    """
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:])


def to_pointer(path: Sequence[str]) -> str:
    """The pointer that goes through these names."""
    return "".join([f"/{name.replace('~', '~0').replace('/', '~1')}" for name in path])


def quoted_name(pointer: str) -> str:
    """The part of a record at this pointer, as messages name it: the last name in quotes."""
    return f"'{pointer.rpartition('/')[2]}'" if pointer else "the record"
