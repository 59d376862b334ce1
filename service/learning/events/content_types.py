"""The forms of a record other than JSON. Each is a subclass of bytes, so a value carries its form.

A producer chooses the form with the header `content-type`; any other value of the header means JSON. MessagePack has
the same content as the JSON. A vector of doubles has positional features and then a label, lowest byte first.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from service.errors import Rejected
from service.learning.events.json_values import MAX_DEPTH, Pairs, inner_values

HEADER = "content-type"


class DoubleVector(bytes):
    """`application/x-perceptron-f8`."""


class MessagePack(bytes):
    """`application/msgpack`."""


TYPES: dict[str, type[bytes]] = {"application/x-perceptron-f8": DoubleVector, "application/msgpack": MessagePack}
FORMS: tuple[type[bytes], ...] = (bytes, *TYPES.values())
"""The forms by their number in `ValueBuffer.forms`."""


def form_of(headers: Sequence[tuple[str, bytes | None]]) -> type[bytes]:
    """The form that a record's headers name. The last `content-type` counts; its parameters are ignored.

    >>> form_of([("content-type", b"application/msgpack; charset=binary")]), form_of([])
    (<class 'service.learning.events.content_types.MessagePack'>, <class 'bytes'>)
    """
    form: type[bytes] = bytes
    for name, value in headers:
        if name == HEADER:
            form = TYPES.get((value or b"").partition(b";")[0].decode("latin-1"), bytes)
    return form


def headers_of(value: bytes) -> list[tuple[str, bytes]]:
    """The headers that name a value's form; JSON needs none."""
    return [(HEADER, name.encode()) for name, form in TYPES.items() if value.__class__ is form]


def double_vector(values: Sequence[float], label: float) -> DoubleVector:
    """Positional features and the label, as a record."""
    return DoubleVector(struct.pack(f"<{len(values) + 1}d", *values, label))


def doubles(raw: bytes) -> tuple[float, ...]:
    """The doubles of a vector; raises struct.error if its size is not a multiple of 8."""
    return struct.unpack(f"<{len(raw) // 8}d", raw)


def unpack(raw: bytes) -> Any:
    """A MessagePack value, with objects as `Pairs`. Bytes, extensions and timestamps stay. Raises Rejected."""
    try:
        value = msgpack.unpackb(raw, object_pairs_hook=Pairs)
    except msgpack.ExtraData as error:
        raise Rejected("trailing-bytes", f"{len(error.extra)} more bytes follow the event") from None
    except (ValueError, msgpack.UnpackException) as error:  # also if a name is not a string or text is not UTF-8
        raise Rejected("not-msgpack", str(error) or "it is cut off or damaged") from None
    if _is_deeper(value, MAX_DEPTH):
        raise Rejected("not-msgpack", f"nested deeper than {MAX_DEPTH} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this many levels."""
    if value.__class__ is not Pairs and value.__class__ is not list:
        return False
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inner_values(value))
