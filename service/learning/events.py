"""Record bytes to a `Batch` of columns, or a reason for each record that breaks the format.

Two readers of one format. The fast one is msgspec with a typed schema; it accepts nothing that is not an event.
What it cannot see (a name given twice, a value beyond the limits) is certified by cheap tests over the bytes or
the whole slice. Where it refuses, or a certificate is missing, the careful one (`_examine`) looks at the record again
and either names the rule that is broken or finds none.

Records are read first, and columns found for the features of those that are events afterwards: so nothing is read
twice, and a slice of which only a part is learned needs no undoing. The acceptance of a record depends on its bytes and
the identity alone, never on the records around it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.columns import Columns, Placed
from service.learning.features import certain, examine, form_of, given, kind, name_fits, names_in, outermost
from service.learning.identity import MAX_VALUE, MAX_WEIGHT, Identity
from service.learning.scanner import MAX_DEPTH, scan

REASONS = (
    "empty", "not-json", "trailing-bytes", "missing-field", "wrong-type", "duplicate-feature", "unknown-label",
    "not-finite", "out-of-range", "bad-weight", "wrong-length", "too-many-features", "name-too-long", "too-large",
)  # fmt: skip

MANY = 1000
"""An event of more features is tested by itself: to read it, and its slice, twice would take too long."""

MEMBERS = ("features", "label", "weight", "id")
"""What an event has."""

_UNSET = msgspec.UNSET
_F = TypeVar("_F")


class Batch(NamedTuple):
    """Events as columns: event i has `columns[starts[i]:starts[i+1]]` and the values beside them.

    The bias (column 0, x0 = 1) is implied. `labels` are ±1.
    """

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint64]
    values: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: Sequence[int] = ()
    """Each event's place in the slice."""
    names: Sequence[str] = ()
    """Names that these events are the first to have: their columns follow upon those in use, in their order."""
    ignored: Sequence[int] = ()
    """The event of each feature that has no column, since there are as many as may be."""

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
        event: Any = _Event
        self._fast: Callable[[bytes], Any] = msgspec.json.Decoder(event[form_of(identity.features)]).decode
        self._signs = label_signs(identity)

    def decode(
        self, records: Sequence[bytes | None], enough: Callable[[], bool] | None = None
    ) -> tuple[Batch, list[Reject]]:
        """A slice of record values as a batch, and the records that are set aside.

        Each that was read is in one of the two. After each `enough` is asked whether the rest is left for later.
        """
        read: list[tuple[int, Any, float]] = []
        rejects: list[Reject] = []
        for i, raw in enumerate(records):
            try:
                read.append((i, *self._read(raw)))
            except Rejected as rejected:
                rejects.append(Reject(i, rejected.reason, str(rejected)))
            if enough is not None and enough():
                break
        placed = self._columns.place([event.features for _, event, _ in read])
        if not self._within_limits(placed):
            good = []
            for one in read:
                i, event, _ = one
                try:
                    if not certain(event.features, self._identity):
                        self._examine(records[i] or b"", event.features)
                    good.append(one)
                except Rejected as rejected:
                    rejects.append(Reject(i, rejected.reason, str(rejected)))
            read = good
            rejects.sort()
            placed = self._columns.place([event.features for _, event, _ in read])
        batch = Batch(
            placed.starts,
            placed.columns,
            placed.values,
            np.array([sign for _, _, sign in read]),
            np.array([1.0 if event.weight is _UNSET else event.weight for _, event, _ in read]),
            [i for i, _, _ in read],
            placed.names,
            [i for i, _, _ in placed.ignored],
        )
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

    def _read(self, raw: bytes | None) -> tuple[Any, float]:
        """One event in the typed schema and its label's sign; raises Rejected, always as `_examine` would.

        That its values and the names that have no column yet are within the limits is not sure of all of them.
        """
        if not raw:
            raise Rejected("empty", "the record has no value")
        if len(raw) > self._identity.max_record_bytes:
            raise Rejected("too-large", f"{len(raw)} bytes; the limit is {self._identity.max_record_bytes}")
        colons = raw.count(b":")
        if colons > self._identity.max_features + len(MEMBERS):  # perhaps of far too many features
            found = scan(raw, MEMBERS).members.get("features")
            if found is not None and found.items > self._identity.max_features:
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
        members = 2 + (weight is not _UNSET) + (event.id is not _UNSET) + names_in(features)
        if (
            sign is None
            or n > self._identity.max_features
            or (self._listed and n != self._identity.dimension)
            or (weight is not _UNSET and not 0.0 < weight <= MAX_WEIGHT)
            or not (colons == members or self._each_once(raw, n))
            or ((self._hashed or n > MANY) and not certain(features, self._identity))
        ):
            self._examine(raw, features)
        assert sign is not None  # noqa: S101 - _examine refuses a label without a sign
        return event, sign

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

    def _examine(self, raw: bytes, read: Any = None) -> None:
        """Raise Rejected with the first rule that the record breaks, in the order of the format; else nothing.

        `read` are its features as msgspec has read them, where it has.
        """
        found = given(raw, MEMBERS)
        for name in ("features", "label"):
            if name not in found:
                raise Rejected("missing-field", f"'{name}' is missing", f"/{name}")
        examine(raw, found.pop("features"), self._identity, "/features", read)
        members = {name: outermost(raw, member) for name, member in found.items()}
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
