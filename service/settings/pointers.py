"""JSON Pointers as settings: the place of a part of an event in a record."""

import re
from typing import Annotated

from pydantic import AfterValidator

from service.text import short_json

_POINTER = re.compile("(/([^~\0]|~[01])*)?")
_EXPECTED = "expected a JSON Pointer, such as /label or /after/label"


def _pointer(text: str) -> str:
    if not _POINTER.fullmatch(text):
        meant = "/" + text.strip("./").replace(".", "/")  # a feature's name has dots
        hint = f": perhaps {meant}" if _POINTER.fullmatch(meant) else ""
        raise ValueError(f"{_EXPECTED}, got {short_json(text)}{hint}")
    return text


def _not_the_record(text: str) -> str:
    if not text:
        raise ValueError(f'{_EXPECTED}, got "": only features can be the whole record')
    return text


PointerOrRecord = Annotated[str, AfterValidator(_pointer)]
"""A pointer, or the empty string, which is the whole record."""
Pointer = Annotated[PointerOrRecord, AfterValidator(_not_the_record)]
