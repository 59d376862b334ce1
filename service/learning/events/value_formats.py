"""The formats of record values, and values in one buffer. A new format is a new item of `FORMATS`.

A record has its format before its value is decoded: `streaming.records.find_formats` looks it up in the headers. In
JSON a compiled scan finds the members at some paths, counts their values and checks the depth. So the standard library
parses only those members, and never more values than the model allows. msgspec checks that the rest is JSON, without
making objects of it. MessagePack has the same content as the JSON. A vector of doubles has positional features and then
a label, lowest byte first.
"""

import struct
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, overload

import msgpack  # type: ignore[import-untyped]
import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.events import json_values
from service.learning.events.compiled.path_tree import TOO_DEEP, MemberSpan, Paths, scan
from service.learning.events.json_values import MAX_DEPTH, WHITE, Pairs, inner_values, to_pointer
from service.learning.events.text_hints import in_brackets
from service.learning.identity import Identity

HEADER = "content-type"
"""The header that names a format. The last one counts; parameters after a `;` are ignored."""
_NOT_FINITE = ((b"NaN", b"[ ]"), (b"-Infinity", b"[       ]"), (b"Infinity", b"[      ]"))
"""Numbers that only the standard library reads, and text of the same length that msgspec reads too."""
_check = msgspec.json.Decoder(msgspec.Raw).decode
"""Raises MsgspecError unless a text is JSON. It takes 1 ms for 1 MiB (measured) and makes no objects."""


class ParsedValues:
    """The values at a list of paths; UNSET where there is none. From text, an object or list stays an unparsed span."""

    def __init__(self, values: Sequence[Any], raw: bytes = b"", not_finite: Rejected | None = None) -> None:
        self.values, self._raw = values, raw
        self.not_finite = not_finite
        """The fault of a text with a NaN or an infinity. It is raised unless the member has a more exact fault."""

    def whole(self, i: int, max_values: int, pointer: str) -> Any:
        """The value at path i, which stands at `pointer`; raises Rejected if it has more than `max_values` values."""
        value = self.values[i]
        is_text = value.__class__ is MemberSpan
        if (value.values if is_text else _count(value)) > max_values:
            raise Rejected("too-many-features", f"more features than the limit, which is {max_values}", pointer)
        return json_values.parse_checked(self._raw[value.begin : value.end]) if is_text else value

    def scalar(self, i: int) -> Any:
        """The value at path i. A list or an object may come back empty."""
        value = self.values[i]
        if value.__class__ is not MemberSpan:
            return value
        text = self._raw[value.begin : value.end].strip(WHITE)
        return [] if text[:1] == b"[" else Pairs() if text[:1] == b"{" else json_values.parse_checked(text)

    def number_text(self, i: int) -> str:
        """The number at path i as it is written in a text, or else in decimal."""
        span = self.values[i]
        return self._raw[span.begin : span.end].strip(WHITE).decode() if span.__class__ is MemberSpan else str(span)


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


def text_values(
    raw: bytes, paths: Paths, model: Identity | None = None, pointer: str = "", commas: NDArray[np.int64] | None = None
) -> ParsedValues:
    """The values at these paths of the JSON object at `pointer`; raises Rejected.

    A NaN is a fault unless the model takes it as absent. `commas` as in `scan`.
    """
    first = raw.lstrip(WHITE)[:1]
    if first not in (b"{", b"["):
        raise _not_an_object(json_values.parse(raw), pointer)
    end, members, repeated_path = scan(raw, paths, commas)
    not_finite = _check_json(raw, end, model is not None and bool(model.event.nan))
    if first == b"[":
        raise _not_an_object([], pointer)
    if repeated_path is not None:
        raise json_values.repeated(repeated_path[-1], pointer + to_pointer(repeated_path))
    return ParsedValues([UNSET if member is None else member for member in members], raw, not_finite)


def _not_an_object(value: Any, pointer: str) -> Rejected:
    """The fault of this parsed value at `pointer`, which is not an object."""
    kind = f"{json_values.type_name(value)}{in_brackets(value)}"
    return Rejected("wrong-type", f"expected an object, got {kind}", pointer)


def _count(value: Any) -> int:
    """The members of objects and the elements of lists in a parsed value, at any depth."""
    return sum(1 + _count(inner) for inner in json_values.inner_values(value))


def _check_json(raw: bytes, end: int, nan: bool) -> Rejected | None:
    """Raise Rejected unless a list or an object is JSON. `end` is the end that its scan returned.

    If only a NaN or an infinity is wrong, the fault is returned: the member may have a more exact one. With `nan` a NaN
    is not wrong.
    """
    if end == TOO_DEEP:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    if (reason := _fault(raw)) is None:
        return None
    finite = raw
    for old, new in _NOT_FINITE:
        finite = finite.replace(old, new)
        if _fault(finite) is None:
            return None if nan and old == b"NaN" else Rejected("not-json", reason)
    following = raw[end:].lstrip(WHITE)
    if end >= 0 and following and _fault(finite[:end]) is None:
        raise Rejected("trailing-bytes", f"more bytes follow the event at byte {len(raw) - len(following)}")
    raise Rejected("not-json", reason)


def _fault(raw: bytes) -> str | None:
    """The reason why a text is not JSON; None if it is."""
    try:
        _check(raw)
    except msgspec.MsgspecError as error:
        return str(error)
    return None


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
        raise _not_an_object(value, "")
    return ParsedValues([UNSET if path is None else json_values.value_at(value, path, "") for path in paths])


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this many levels."""
    if value.__class__ is not Pairs and value.__class__ is not list:
        return False
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in inner_values(value))


def _parse_text(raw: bytes, paths: Paths, identity: Identity) -> ParsedValues:
    return text_values(raw.removeprefix(BOM_UTF8), paths, identity)


def _load_text(raw: bytes) -> Any:
    return msgspec.json.decode(raw.removeprefix(BOM_UTF8))


JSON = ValueFormat("json", "", _parse_text, _load_text, "rows")
MESSAGE_PACK = ValueFormat("msgpack", "application/msgpack", _parse_message_pack, msgspec.msgpack.decode, "")
DOUBLE_VECTOR = ValueFormat("f8", "application/x-perceptron-f8", _parse_vector, _load_vector, "vectors")
FORMATS = (JSON, MESSAGE_PACK, DOUBLE_VECTOR)
"""A format's number is its index here."""


class ValueBuffer(Sequence[bytes | None]):
    """The values of records in one buffer, for compiled loops.

    Value i is `data[begins[i]:ends[i]]`, or None if `begins[i]` is below 0. The values lie in their order, perhaps with
    other bytes between them. `format_numbers` has the number of each value's format; None if all values are JSON.

    >>> values = ValueBuffer.from_values([b"{}", None, b"[1]"])
    >>> list(values), list(values[1:])
    ([b'{}', None, b'[1]'], [None, b'[1]'])
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        format_numbers: NDArray[np.int64] | None = None,
    ) -> None:
        self.data, self.begins, self.ends = data, begins, ends
        self.format_numbers = format_numbers if format_numbers is not None and format_numbers.any() else None

    @classmethod
    def from_values(cls, values: Sequence[bytes | None], formats: Sequence[ValueFormat] = ()) -> Self:
        """A buffer of these values, with a zero after each; a buffer stays as it is. Without formats they are JSON."""
        if isinstance(values, cls):
            return values
        texts = [value or b"" for value in values]
        ends = np.cumsum([*map(len, texts)], dtype=np.int64) + np.arange(len(texts))
        begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        if None in values:
            begins[[value is None for value in values]] = -1
        data = np.frombuffer(b"\0".join([*texts, bytes(8)]), np.uint8)
        return cls(data, begins, ends, np.array([*map(FORMATS.index, formats)]) if formats else None)

    def __len__(self) -> int:
        return len(self.begins)

    def __iter__(self) -> Iterator[bytes | None]:
        data = self.data.data
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            yield None if begin < 0 else bytes(data[begin:end])

    @overload
    def __getitem__(self, i: int) -> bytes | None: ...
    @overload
    def __getitem__(self, i: slice | list[int]) -> Self: ...
    def __getitem__(self, i: int | slice | list[int]) -> bytes | Self | None:
        """Value i, or a buffer of a part of the values."""
        if not isinstance(i, int):
            numbers = None if self.format_numbers is None else self.format_numbers[i]
            return type(self)(self.data, self.begins[i], self.ends[i], numbers)
        begin, end = self.begins.item(i), self.ends.item(i)
        return None if begin < 0 else bytes(self.data.data[begin:end])

    def format_at(self, i: int) -> ValueFormat:
        """The format of value i."""
        return JSON if self.format_numbers is None else FORMATS[self.format_numbers[i]]

    @property
    def only_format(self) -> ValueFormat | None:
        """The format that all values have; None if they have several."""
        if self.format_numbers is None:
            return JSON
        numbers = self.format_numbers[self.begins >= 0]
        return FORMATS[numbers[0]] if len(numbers) and (numbers == numbers[0]).all() else None
