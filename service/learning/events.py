"""Record bytes to a `Batch` of columns, or a reason for each record that breaks the format.

Two readers of one format. `_read` has msgspec read plain numbers by a typed schema; it accepts nothing that is not an
event. What it cannot see (a name given twice, a value beyond the limits) is certified by cheap tests over the bytes or
the whole slice. Where it refuses, or a certificate is missing, `_look` reads the record by the whole format, which
names the rule that is broken where there is one.

Records are read first, and columns found for the features of those that are events afterwards: so nothing is read
twice, and a slice of which only a part is learned needs no undoing. The acceptance of a record depends on its bytes and
the identity alone, never on the records around it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.columns import Columns, Placed, columns_for
from service.learning.compiled import ENABLED
from service.learning.features import Features, Flattener, certain, name_fits, names_in, numbers_of
from service.learning.forms import FORMS, Vector, vector
from service.learning.identity import MAX_VALUE, MAX_WEIGHT, Identity, Places, listed
from service.learning.joined import Joined
from service.learning.places import Way, shown, values_at, way
from service.learning.rows import Read, Reader
from service.learning.scanner import MAX_DEPTH, refuse_constants, scan
from service.learning.values import kind
from service.learning.vectors import Vectors
from service.learning.ways import UnsuitedError

REASONS = (
    "empty", "not-json", "not-msgpack", "trailing-bytes", "missing-field", "wrong-type", "duplicate-feature",
    "unknown-label", "not-finite", "out-of-range", "bad-weight", "wrong-length", "too-many-features", "name-too-long",
    "too-large",
)  # fmt: skip

MANY = 1000
"""An event of more features is tested by itself: to read it, and its slice, twice would take too long."""

UNUSUAL_SLICES = 50
"""To ask for each record costs more than to read it by the decoder at once."""
MEMBERS = ("features", "label", "weight", "id")
"""What an event has."""

_UNSET = msgspec.UNSET
_NONE = np.zeros(0, bool)
_F = TypeVar("_F")


class Batch(NamedTuple):
    """Events as columns: event i has `columns[starts[i]:starts[i+1]]` and the values beside them.

    The bias (column 0, x0 = 1) is implied. `labels` are ±1, or the class's number from 0 on where there are more.
    """

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint32]
    values: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: Sequence[int] = ()
    """Each event's place in the slice."""
    names: Sequence[str] = ()
    """Names that these events are the first to have: their columns follow upon those in use, in their order."""
    ignored: Sequence[int] = ()
    """The event of each feature that has no column, since there are as many as may be."""
    skipped: Sequence[int] = ()
    """The places of the records that `where` passes over."""
    numbers: NDArray[np.bool_] = _NONE
    """Which of the values are numbers, where they are to be scaled: see `columns.Placed`."""

    def first(self, count: int) -> Self:
        """The first events alone."""
        end = int(self.starts[count])
        later = int(self.columns.max(initial=0)) - int(self.columns[:end].max(initial=0))
        return self._replace(
            starts=self.starts[: count + 1],
            columns=self.columns[:end],
            values=self.values[:end],
            labels=self.labels[:count],
            weights=self.weights[:count],
            records=self.records[:count],
            names=self.names[: max(len(self.names) - later, 0)],
            ignored=[event for event in self.ignored if event < count],
            skipped=[record for record in self.skipped if record < self.records[count]],
        )


class Reject(NamedTuple):
    """A record of a slice that was set aside: its place in the slice, a slug of REASONS, one line of detail."""

    record: int
    reason: str
    detail: str


class _Event(msgspec.Struct, Generic[_F]):
    features: _F
    label: bool | int | float | str
    weight: float | msgspec.UnsetType = _UNSET
    id: str | msgspec.UnsetType = _UNSET


class _Reading:
    """How usual events are read in this process."""

    compiled = False


def read_by(*, compiled: bool) -> None:
    """Have usual events read by compiled code in all of this process from now on, or no more; they mean the same.

    Without a kept result the first call takes seconds, in which events are read as well, more slowly.
    """
    if compiled and ENABLED:
        for identity in (Identity(), Identity(features="hashed", bits=2), Identity(features="positional", dimension=1)):
            columns = columns_for(identity)
            columns.extend(["a"])
            for values in ([b'{"features":{"\\u0061":1,"new":1},"label":1}', b"[1]", None], [vector([1.0], 1.0)]):
                Decoder(identity, columns).decode_rows(Joined.of(values))
    _Reading.compiled = compiled and ENABLED


class Decoder:
    """Reads the events of one model. Its columns are looked at, and stay as they are.

    >>> from service.learning.columns import columns_for
    >>> decoder = Decoder(Identity(), columns_for(Identity()))
    >>> records = [b'{"features": {"a": 1e99}, "label": 1}', b'{"features": {"b": 3}, "label": 0}']
    >>> batch, rejects = decoder.decode(records)
    >>> batch.names, batch.values, batch.labels, batch.records
    (['b'], array([3.]), array([-1.]), [1])
    >>> rejects[0].reason, rejects[0].detail
    ('out-of-range', 'feature "a" is beyond ±1e+30')
    """

    def __init__(self, identity: Identity, columns: Columns) -> None:
        self._identity, self._columns = identity, columns
        self._listed = identity.features == "positional"
        self._hashed = identity.features == "hashed"
        self._places = identity.event
        event: Any = _Event
        numbers = msgspec.json.Decoder(event[numbers_of(identity.features)]).decode
        self._numbers: Callable[[bytes], Any] | None = numbers if self._places == Places() else None
        self._plain = True
        """Whether the records of this slice have had numbers alone so far: to look for them in vain takes time."""
        self._signs = label_signs(identity)
        self._vectors = Vectors(identity, self._signs)
        self.flattener = Flattener(identity)
        self._ways = _ways(self._places)
        self._reader: Reader | None = None
        self._unusual = 0
        """So many slices more are read without it, since most records of one were not for it."""
        with suppress(UnsuitedError):
            self._reader = Reader(identity, self._signs)

    def decode(
        self, records: Sequence[bytes | None], enough: Callable[[], bool] | None = None
    ) -> tuple[Batch, list[Reject]]:
        """A slice of record values as a batch, and the records that are set aside.

        Each that was read is in one of the two, or among those that are skipped. After each that takes time `enough` is
        asked whether the rest is left for later.
        """
        if self._reader is not None and _Reading.compiled:
            values = records if isinstance(records, Joined) else Joined.of(records)
            if values.forms is None or (self._listed and _all_vectors(values.forms, values.begins)):
                if not self._unusual:
                    return self.decode_rows(values, enough)
                self._unusual -= 1
        read: list[tuple[int, Features, float, float]] = []
        rejects: list[Reject] = []
        skipped: list[int] = []
        self._plain = True
        for i, raw in enumerate(records):
            try:
                event = self._read(raw)
            except Rejected as rejected:
                rejects.append(Reject(i, rejected.reason, str(rejected)))
            else:
                if event is None:
                    skipped.append(i)
                else:
                    read.append((i, *event))
            if enough is not None and enough():
                break
        placed = self._columns.place([event[1] for event in read])
        if not self._within_limits(placed):
            good = []
            for one in read:
                try:
                    again = None if certain(one[1], self._identity) else self._look(records[one[0]] or b"")
                    good.append(one if again is None else (one[0], *again))
                except Rejected as rejected:
                    rejects.append(Reject(one[0], rejected.reason, str(rejected)))
            read = good
            rejects.sort()
            placed = self._columns.place([event[1] for event in read])
        batch = Batch(
            placed.starts,
            placed.columns,
            placed.values,
            np.array([sign for _, _, sign, _ in read]),
            np.array([weight for _, _, _, weight in read]),
            [i for i, _, _, _ in read],
            placed.names,
            [i for i, _, _ in placed.ignored],
            skipped,
            placed.numbers,
        )
        return batch, rejects

    def decode_rows(self, values: Joined, enough: Callable[[], bool] | None = None) -> tuple[Batch, list[Reject]]:
        """The same by a compiled loop, which leaves to us what it is not sure of; all are JSON, or all vectors."""
        assert self._reader is not None  # noqa: S101 - else nobody asks
        rejects, skipped = list[Reject](), list[int]()
        self._plain, left = True, 0

        def otherwise(i: int) -> Read | None:
            nonlocal left
            left += 1
            try:
                raw = values[i]
                event = self._read(raw)
                if event is not None and not certain(event[0], self._identity):
                    event = self._look(raw or b"")
                if event is not None:
                    return event
                skipped.append(i)
            except Rejected as rejected:
                rejects.append(Reject(i, rejected.reason, str(rejected)))
            return None

        if values.forms is None:
            rows = self._reader.read(values, otherwise, enough)
        else:
            rows = self._vectors.rows(values)
            if len(rows.records) < len(values):
                for i in np.setdiff1d(np.arange(len(values)), rows.records).tolist():
                    otherwise(i)
        self._unusual = UNUSUAL_SLICES if left > len(values) / 2 else 0
        placed = self._columns.place_rows(rows)
        batch = Batch(
            placed.starts, placed.columns, placed.values, rows.signs, rows.weights, rows.records.tolist(), placed.names,
            [i for i, _, _ in placed.ignored], sorted([*skipped, *rows.skipped.tolist()]), placed.numbers,
        )  # fmt: skip
        return batch, rejects

    def _within_limits(self, placed: Placed) -> bool:
        """Whether names and values are, by one test over a slice instead of one for each event.

        Names that have a column are, and msgspec lets no NaN or infinity through.
        """
        return (
            (not len(placed.values) or float(np.abs(placed.values).max()) <= MAX_VALUE)
            and all(name_fits(name, self._identity) for name in placed.names)
            and all(name_fits(name, self._identity) and abs(value) <= MAX_VALUE for _, name, value in placed.ignored)
        )

    def _read(self, raw: bytes | None) -> tuple[Features, float, float] | None:
        """An event's features, its label's sign and its weight, always as by `_look`; None where it is passed over.

        That its values and the names that have no column yet are within the limits is not sure of all of them. Raises
        Rejected.
        """
        if not raw:
            if self._places.where:
                return None  # as where a change feed says that a row is gone
            raise Rejected("empty", "the record has no value")
        if len(raw) > self._identity.max_record_bytes:
            raise Rejected("too-large", f"{len(raw)} bytes; the limit is {self._identity.max_record_bytes}")
        if self._numbers is None or not self._plain or raw.__class__ is not bytes:
            return self._look(raw)
        colons = raw.count(b":")
        most = self._identity.max_features + len(MEMBERS)
        if colons > most and raw.count(b",") >= most:  # perhaps of far too many features
            found = scan(raw, MEMBERS).members.get("features")
            if found is not None and found.items > self._identity.max_features:
                return self._look(raw)
        try:
            event = self._numbers(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._plain = False
            return self._look(raw)
        features, weight, label = event.features, event.weight, event.label
        n = len(features)
        # A boolean is not a number here, though Python compares it like one.
        sign = self._signs.get((label.__class__ is bool, label))
        # As many colons as members: no member is given twice or unknown, and no string hides one.
        members = 2 + (weight is not _UNSET) + (event.id is not _UNSET) + names_in(features)
        if (
            sign is None
            or n > self._identity.max_features
            or (self._listed and n != self._identity.dimension)
            or (weight is not _UNSET and not 0.0 < weight <= MAX_WEIGHT)
            or not (colons == members or self._each_once(raw, n))
            or ((self._hashed or n > MANY) and not certain(features, self._identity))
        ):
            return self._look(raw)
        return features, sign, 1.0 if weight is _UNSET else weight

    def _each_once(self, raw: bytes, features: int) -> bool:
        """Whether a record that msgspec took, `features` of them different, has no known member or feature twice.

        And whether what msgspec passed over, unknown members, is JSON like the rest.
        """
        look = scan(raw, MEMBERS)
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
        found = look.members.get("features")
        once = look.twice is None and found is not None and (self._listed or found.items == features)
        return once and look.deepest <= MAX_DEPTH

    def _look(self, raw: bytes) -> tuple[Features, float, float] | None:
        """What `_read` gives, by every rule, in their order; raises Rejected with the first that is broken."""
        places = self._places
        if raw.__class__ is Vector:
            found = dict.fromkeys(self._ways, _UNSET) | self._vectors.parts(raw)
        else:
            there = values_at(raw, [*self._ways.values()], self._identity.max_features)
            found = dict(zip(self._ways, there, strict=True))
        for pointer, values in places.where.items():
            if not any(same(found[pointer], value) for value in values):
                _refuse_constants(raw)
                return None
        for part, pointer in (("features", places.features), ("label", places.label)):
            if found[part] is _UNSET:
                raise Rejected("missing-field", f"{shown(pointer)} is missing", pointer)
        features, label = self.flattener.of(found["features"], places.features), found["label"]
        if not isinstance(label, bool | int | float | str):
            detail = f"{shown(places.label)} must be a number, boolean or string, got {kind(label)}"
            raise Rejected("wrong-type", detail, places.label)
        if (isinstance(label, bool), label) not in self._signs:
            expected = self._identity.labels or (-1, 0, False, 1, True)
            detail = f"{shown(places.label)} must be one of {listed(expected)}"
            raise Rejected("unknown-label", detail, places.label)
        weight, id_ = found.get("weight", _UNSET), found.get("id", _UNSET)
        if weight is not _UNSET and places.weight is not None:
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                detail = f"{shown(places.weight)} must be a number, got {kind(weight)}"
                raise Rejected("wrong-type", detail, places.weight)
            if not 0.0 < weight <= MAX_WEIGHT:
                detail = f"{shown(places.weight)} must be in (0, {MAX_WEIGHT:g}]"
                raise Rejected("bad-weight", detail, places.weight)
        if id_ is not _UNSET and places.id and (isinstance(id_, bool) or not isinstance(id_, str | int | float)):
            raise Rejected("wrong-type", f"{shown(places.id)} must be a string or a number, got {kind(id_)}", places.id)
        _refuse_constants(raw)  # where nobody looked
        return features, self._signs[isinstance(label, bool), label], 1.0 if weight is _UNSET else float(weight)


def _all_vectors(forms: NDArray[np.int64], begins: NDArray[np.int64]) -> bool:
    return bool(((forms == FORMS.index(Vector)) | (begins < 0)).all())


def _refuse_constants(raw: bytes) -> None:
    if raw.__class__ is bytes:  # other forms have them
        refuse_constants(raw)


def _ways(places: Places) -> dict[str, Way]:
    """What is looked at in a record, the features first: parts by their names, what `where` says by its pointers."""
    parts = {part: getattr(places, part) for part in MEMBERS} | {pointer: pointer for pointer in places.where}
    return {name: way(pointer) for name, pointer in parts.items() if pointer is not None}


def same(value: Any, expected: Any) -> bool:
    """Whether a parsed value is this one: numbers by value, and a boolean is none."""
    return bool((value.__class__ is bool) == (expected.__class__ is bool) and value == expected)


def label_signs(identity: Identity) -> dict[tuple[bool, Any], float]:
    """The sign of each label that the model knows, or its class, by (is it a boolean, value).

    Numbers compare by value.
    """
    if identity.labels is None:
        return {(False, -1): -1.0, (False, 0): -1.0, (True, False): -1.0, (False, 1): 1.0, (True, True): 1.0}
    signs = range(identity.classes) if identity.multiclass else (-1.0, 1.0)
    return {(isinstance(x, bool), x): float(sign) for x, sign in zip(identity.labels, signs, strict=True)}
