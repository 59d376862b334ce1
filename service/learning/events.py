"""Record bytes to a `Batch` of columns, or a reason for each record that breaks the format.

Two readers of one format. The fast one is msgspec with a typed schema; it accepts nothing that is not an event.
What it cannot see (a name given twice, a value beyond the limits) is certified by cheap tests over the bytes or
the whole slice. Where it refuses, or a certificate is missing, the careful one (`_examine`) looks at the record again
and either names the rule that is broken or finds none. It reads what the rules are about with the standard library,
and only looks over the rest (`scanner`): what no rule is about costs little, however it is made.

The acceptance of a record depends on its bytes and the identity alone, never on the records around it.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.columns import Columns
from service.learning.features import Members, certain, check_form, check_items, kind, name_fits, parse
from service.learning.identity import MAX_VALUE, MAX_WEIGHT, Identity
from service.learning.scanner import MAX_DEPTH, MEMBERS, WHITE, Member, look, scan

REASONS = (
    "empty", "not-json", "trailing-bytes", "missing-field", "wrong-type", "duplicate-feature", "unknown-label",
    "not-finite", "out-of-range", "bad-weight", "wrong-length", "too-many-features", "name-too-long", "too-large",
)  # fmt: skip

MANY = 1000
"""An event of more features is tested by itself: to read it, and its slice, twice would take too long."""

_UNSET = msgspec.UNSET


class Batch(NamedTuple):
    """Events as columns: event i has `columns[starts[i]:starts[i+1]]` and the values beside them.

    The bias (column 0, x0 = 1) is implied. `labels` are ±1. `records[i]` is event i's place in the slice.
    """

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint64]
    values: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: list[int]


class Reject(NamedTuple):
    """A record of a slice that was set aside: its place in the slice, a slug of REASONS, one line of detail."""

    record: int
    reason: str
    detail: str


class _NamedEvent(msgspec.Struct):
    features: dict[str, float]
    label: bool | int | float | str
    weight: float | msgspec.UnsetType = _UNSET
    id: str | msgspec.UnsetType = _UNSET


class _ListedEvent(msgspec.Struct):
    features: list[float]
    label: bool | int | float | str
    weight: float | msgspec.UnsetType = _UNSET
    id: str | msgspec.UnsetType = _UNSET


class Decoder:
    """Reads the events of one model. Its columns are extended by the events that are accepted, by no others."""

    def __init__(self, identity: Identity, columns: Columns) -> None:
        self._identity, self._columns = identity, columns
        self._listed = identity.features == "positional"
        self._hashed = identity.features == "hashed"
        self._fast: Callable[[bytes], Any] = msgspec.json.Decoder(_ListedEvent if self._listed else _NamedEvent).decode
        self._signs = label_signs(identity)

    def decode(
        self, records: Sequence[bytes | None], enough: Callable[[], bool] | None = None
    ) -> tuple[Batch, list[Reject], int]:
        """A slice of record values as a batch, the records set aside, and how many features were ignored.

        Each record that was read is in one of the two. After each `enough` is asked whether the rest is left for later.
        """
        count = len(self._columns.names)
        batch, rejects, ignored = self._decode(records, enough)
        # One test over the slice instead of one for each event. msgspec lets no NaN or infinity through.
        in_range = not len(batch.values) or float(np.abs(batch.values).max()) <= MAX_VALUE
        unseen = all(name_fits(name, self._identity) and abs(value) <= MAX_VALUE for name, value in ignored)
        if not (in_range and unseen and all(name_fits(name, self._identity) for name in self._columns.names[count:])):
            self._columns.truncate(count)
            read = len(batch.records) + len(rejects)
            batch, rejects, ignored = self._decode(records[:read], each=True)
        return batch, rejects, len(ignored)

    def _decode(
        self, records: Sequence[bytes | None], enough: Callable[[], bool] | None = None, *, each: bool = False
    ) -> tuple[Batch, list[Reject], list[tuple[str, float]]]:
        """As `decode`; names and values are within the limits for certain only where `each` event is tested."""
        starts, columns, values = array("Q", [0]), array("Q"), array("d")
        labels, weights = array("d"), array("d")
        accepted: list[int] = []
        rejects: list[Reject] = []
        ignored: list[tuple[str, float]] = []
        place = self._columns.place
        for i, raw in enumerate(records):
            try:
                event, sign = self._read(raw, each)
            except Rejected as rejected:
                rejects.append(Reject(i, rejected.reason, str(rejected)))
            else:
                ignored += place(event.features, columns, values)
                starts.append(len(columns))
                labels.append(sign)
                weights.append(1.0 if event.weight is _UNSET else event.weight)
                accepted.append(i)
            if enough is not None and enough():
                break
        batch = Batch(
            np.frombuffer(starts, np.uint64),
            np.frombuffer(columns, np.uint64),
            np.frombuffer(values, np.float64),
            np.frombuffer(labels, np.float64),
            np.frombuffer(weights, np.float64),
            accepted,
        )
        return batch, rejects, ignored

    def _read(self, raw: bytes | None, each: bool) -> tuple[Any, float]:
        """One event in the typed schema and its label's sign; raises Rejected, always as `_examine` would."""
        if not raw:
            raise Rejected("empty", "the record has no value")
        if len(raw) > self._identity.max_record_bytes:
            raise Rejected("too-large", f"{len(raw)} bytes; the limit is {self._identity.max_record_bytes}")
        colons = raw.count(b":")
        if colons > self._identity.max_features + len(MEMBERS):  # perhaps of far too many features
            given = scan(raw).member("features")
            if given is not None and given.items > self._identity.max_features:
                self._examine(raw)
        try:
            event = self._fast(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._examine(raw)
            raise Rejected("not-json", str(error)) from None
        features, weight, label = event.features, event.weight, event.label
        n = len(features)
        # A boolean is not a number here, though Python compares it like one.
        sign = self._signs.get((label.__class__ is bool, label))
        # As many colons as members: no member is given twice or unknown, and no string hides one.
        members = 2 + (weight is not _UNSET) + (event.id is not _UNSET) + (0 if self._listed else n)
        if (
            sign is None
            or n > self._identity.max_features
            or (self._listed and n != self._identity.dimension)
            or (weight is not _UNSET and not 0.0 < weight <= MAX_WEIGHT)
            or not (colons == members or self._each_once(raw, n))
            or ((each or self._hashed or n > MANY) and not certain(features, self._identity))
        ):
            self._examine(raw, features)
        assert sign is not None  # noqa: S101 - _examine refuses a label without a sign
        return event, sign

    def _each_once(self, raw: bytes, features: int) -> bool:
        """Whether a record that msgspec took, `features` of them different, has no known member or feature twice.

        And whether what msgspec passed over, unknown members, is JSON like the rest.
        """
        found = scan(raw)
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
        given = found.member("features")
        once = found.again < 0 and given is not None and (self._listed or given.items == features)
        return once and found.deepest <= MAX_DEPTH

    def _examine(self, raw: bytes, read: Any = None) -> None:
        """Raise Rejected with the first rule that the record breaks, in the order of the format; else nothing.

        `read` are its features as msgspec has read them, where it has: they are not read again unless one is missing.
        """
        first = raw.lstrip(WHITE)[:1]
        found = look(raw) if first in (b"{", b"[") else None
        if found is None or first == b"[":
            raise Rejected("wrong-type", f"expected an object, got {'a list' if found else kind(parse(raw))}")
        if found.again >= 0:
            name = MEMBERS[found.again]
            raise Rejected("duplicate-feature", f"'{name}' is given twice", f"/{name}")
        given = {name: member for name in MEMBERS if (member := found.member(name))}
        for name in ("features", "label"):
            if name not in given:
                raise Rejected("missing-field", f"'{name}' is missing", f"/{name}")
        features = given.pop("features")
        outermost = _outermost(raw, features)
        check_form(kind(outermost), features.items, self._identity, "/features")
        if read is not None and features.items == len(read):
            check_items(read if self._listed else read.items(), self._identity, "/features")
        else:
            text = raw[features.start : features.end]
            if features.nested >= 0:
                # A feature that is no number is the last that matters: what it holds and what follows is not read.
                inner = b"[]" if raw[features.nested] == ord("[") else b"{}"
                text = raw[features.start : features.nested] + inner + (b"]" if self._listed else b"}")
            check_items(parse(text), self._identity, "/features")
        members = {name: _outermost(raw, member) for name, member in given.items()}
        label = members["label"]
        if not isinstance(label, bool | int | float | str):
            raise Rejected("wrong-type", f"'label' must be a number, boolean or string, got {kind(label)}", "/label")
        if (isinstance(label, bool), label) not in self._signs:
            expected = self._identity.labels or (-1, 0, False, 1, True)
            detail = f"'label' must be one of {', '.join(map(json.dumps, expected))}"
            raise Rejected("unknown-label", detail, "/label")
        if "weight" in members:
            weight = members["weight"]
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise Rejected("wrong-type", f"'weight' must be a number, got {kind(weight)}", "/weight")
            if not 0.0 < weight <= MAX_WEIGHT:
                raise Rejected("bad-weight", f"'weight' must be in (0, {MAX_WEIGHT:g}]", "/weight")
        if "id" in members and not isinstance(members["id"], str):
            raise Rejected("wrong-type", f"'id' must be a string, got {kind(members['id'])}", "/id")


def label_signs(identity: Identity) -> dict[tuple[bool, Any], float]:
    """The sign of each label that the model knows, by (is it a boolean, value): numbers compare by value."""
    if identity.labels is None:
        return {(False, -1): -1.0, (False, 0): -1.0, (True, False): -1.0, (False, 1): 1.0, (True, True): 1.0}
    negative, positive = identity.labels
    return {(isinstance(negative, bool), negative): -1.0, (isinstance(positive, bool), positive): 1.0}


def _outermost(raw: bytes, member: Member) -> Any:
    """A member's value; of a list or an object only that it is one."""
    text = raw[member.start : member.end].strip(WHITE)
    return [] if text[:1] == b"[" else Members() if text[:1] == b"{" else parse(text)
