"""The forms that a record may have beside JSON, each a kind of bytes, so that whoever hands a value on keeps its form.

A producer chooses with the header `content-type`; whatever is not named here is JSON. MessagePack is what the same JSON
would be. A vector is positional features and a label behind them, doubles with the lowest byte first.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from service.errors import Rejected
from service.learning.scanner import MAX_DEPTH
from service.learning.values import Members

HEADER = "content-type"


class Vector(bytes):
    """`application/x-perceptron-f8`."""


class Packed(bytes):
    """`application/msgpack`."""


TYPES: dict[str, type[bytes]] = {"application/x-perceptron-f8": Vector, "application/msgpack": Packed}
FORMS: tuple[type[bytes], ...] = (bytes, *TYPES.values())
"""By number, as `Joined` and `framing` have them."""


def form_of(headers: Sequence[tuple[str, bytes | None]]) -> type[bytes]:
    """The form that a record's headers say; of several the last one, whose parameters mean nothing.

    >>> form_of([("content-type", b"application/msgpack; charset=binary")]), form_of([])
    (<class 'service.learning.forms.Packed'>, <class 'bytes'>)
    """
    form: type[bytes] = bytes
    for name, value in headers:
        if name == HEADER:
            form = TYPES.get((value or b"").partition(b";")[0].decode("latin-1"), bytes)
    return form


def headers_of(value: bytes) -> list[tuple[str, bytes]]:
    """The headers with which a record says its value's form; JSON needs none."""
    return [(HEADER, name.encode()) for name, form in TYPES.items() if value.__class__ is form]


def vector(values: Sequence[float], label: float) -> Vector:
    """Positional features and the label, as a record."""
    return Vector(struct.pack(f"<{len(values) + 1}d", *values, label))


def doubles(raw: bytes) -> tuple[float, ...]:
    """What a vector is made of; raises struct.error where that is no whole number of doubles."""
    return struct.unpack(f"<{len(raw) // 8}d", raw)


def unpacked(raw: bytes) -> Any:
    """The value, objects as `Members`; raises Rejected. What JSON has no word for stays what it is."""
    try:
        value = msgpack.unpackb(raw, object_pairs_hook=Members)
    except msgpack.ExtraData as error:
        raise Rejected("trailing-bytes", f"{len(error.extra)} more bytes follow the event") from None
    except UnicodeDecodeError:
        raise Rejected("not-msgpack", "a string is not UTF-8") from None
    except (ValueError, msgpack.UnpackException) as error:  # a name that is no string, and what is too deep, too
        raise Rejected("not-msgpack", str(error) or "it is cut off or damaged") from None
    if _depth(value) > MAX_DEPTH:
        raise Rejected("not-msgpack", f"nested deeper than {MAX_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    """How many objects and lists stand within each other, no more than one beyond MAX_DEPTH."""
    depth, inner = 0, [value]
    while inner and depth <= MAX_DEPTH:
        inner = [one for one in inner if one.__class__ is Members or one.__class__ is list]
        inner = [v for one in inner for v in (one if one.__class__ is list else (v for _, v in one))]
        depth += 1
    return depth - 1 if not inner and depth else depth
