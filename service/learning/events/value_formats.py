"""The formats of record values. A new format is a new item of `FORMATS`.

A record has its format before its value is decoded: `streaming.records.find_formats` looks it up in the headers.
MessagePack has the same content as the JSON. A vector of doubles has positional features and then a label, lowest byte
first.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import msgspec
from msgspec import UNSET

from service.errors import Rejected
from service.learning.events.compiled.path_tree import Paths
from service.learning.events.json_values import MAX_DEPTH, Pairs, inner_values, type_name, value_at
from service.learning.events.parsed_values import ParsedValues, not_an_object, text_values
from service.learning.identity import Identity

HEADER = "content-type"
"""The header that names a format. The last one counts; parameters after a `;` are ignored."""


class ValueFormat(NamedTuple):
    """A format of record values."""

    name: str
    """The name for `perceptron produce --as`."""
    media_type: str
    """The content type that a record's header names. The first format, which needs no header, has none."""
    parse: Callable[[bytes, Paths, Identity], ParsedValues]
    """Returns the values at these paths of an event; raises Rejected, also if no event of the model has this format."""
    load: Callable[[bytes], Any]
    """Returns a whole value with objects as dictionaries; raises ValueError, RecursionError or struct.error."""
    compiled_reader: str
    """The compiled reader of this format: "rows" or "vectors"; "" if there is none."""

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of a record in this format."""
        return [(HEADER, self.media_type.encode())] if self.media_type else []


def encode_vector(values: Sequence[float], label: float) -> bytes:
    """Positional features and the label as a vector of doubles."""
    return struct.pack(f"<{len(values) + 1}d", *values, label)


def _parse_vector(raw: bytes, paths: Paths, identity: Identity) -> ParsedValues:
    """The features, the label and UNSET for all other paths."""
    dimension, mode = identity.dimension or 0, identity.features
    if mode != "positional":
        raise Rejected("wrong-type", f"a vector has no names, and this model's features are {mode}")
    if len(raw) != 8 * (dimension + 1):
        expected = f"{dimension} values and a label, of 8 bytes each"
        raise Rejected("wrong-length", f"expected {expected}; got {len(raw)} bytes")
    return ParsedValues([*_load_vector(raw).values(), *[UNSET] * (len(paths) - 2)])


def _load_vector(raw: bytes) -> dict[str, Any]:
    *features, label = struct.unpack(f"<{len(raw) // 8}d", raw)
    return {"features": features, "label": label}


def _parse_message_pack(raw: bytes, paths: Paths, _: Identity) -> ParsedValues:
    """Objects are `Pairs`. Bytes, extensions and timestamps stay."""
    try:
        value = msgpack.unpackb(raw, object_pairs_hook=Pairs)
    except msgpack.ExtraData as error:
        raise Rejected("trailing-bytes", f"{len(error.extra)} more bytes follow the event") from None
    except (ValueError, msgpack.UnpackException) as error:  # also if a name is not a string or text is not UTF-8
        raise Rejected("not-msgpack", str(error) or "it is cut off or damaged") from None
    if _is_deeper(value, MAX_DEPTH):
        raise Rejected("not-msgpack", f"nested deeper than {MAX_DEPTH} levels")
    if value.__class__ is not Pairs:
        raise not_an_object(type_name(value), "")
    return ParsedValues([UNSET if path is None else value_at(value, path, "") for path in paths])


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this many levels."""
    if value.__class__ is not Pairs and value.__class__ is not list:
        return False
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inner_values(value))


JSON = ValueFormat("json", "", lambda raw, paths, _: text_values(raw, paths), msgspec.json.decode, "rows")
MESSAGE_PACK = ValueFormat("msgpack", "application/msgpack", _parse_message_pack, msgspec.msgpack.decode, "")
DOUBLE_VECTOR = ValueFormat("f8", "application/x-perceptron-f8", _parse_vector, _load_vector, "vectors")
FORMATS = (JSON, MESSAGE_PACK, DOUBLE_VECTOR)
"""A format's number is its index here."""
