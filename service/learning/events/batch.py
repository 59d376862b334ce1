"""Record values to a `Batch` of columns, and a reason for each record that breaks the format.

The compiled reader accepts usual records and declines the others; the careful reader reads those. Features are read
first, and columns are found for those of accepted events only. So no record is read twice, and a slice of which only a
part is learned needs no undoing. Whether a record is accepted depends on its bytes and the identity, never on the other
records of the slice.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.columns.columns import Columns, Placed, columns_for
from service.learning.events.careful_reader import CarefulReader, Event
from service.learning.events.compiled.path_tree import UnsupportedError
from service.learning.events.compiled.row_reader import RowReader
from service.learning.events.compiled.vector_reader import VectorReader
from service.learning.events.content_types import FORMS, DoubleVector, double_vector
from service.learning.events.value_buffer import ValueBuffer
from service.learning.identity import Identity
from service.learning.jit.jit import ENABLED

REASONS = (
    "empty", "not-json", "not-msgpack", "trailing-bytes", "missing-field", "wrong-type", "duplicate-feature",
    "unknown-label", "not-finite", "out-of-range", "bad-weight", "wrong-length", "too-many-features", "name-too-long",
    "too-large",
)  # fmt: skip

UNUSUAL_SLICES = 50
"""After a slice of mostly unusual records the compiled reader is not tried for this many slices."""
_NONE = np.zeros(0, bool)


class Batch(NamedTuple):
    """Events as columns: event i has the columns and values from `starts[i]` to before `starts[i + 1]`.

    The bias (column 0, x0 = 1) is implied. `labels` are ±1, or with more than two labels the number of the class.
    """

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint32]
    values: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: Sequence[int] = ()
    """Each event's place in the slice."""
    names: Sequence[str] = ()
    """Names that are new with these events: they get the next columns, in this order."""
    ignored: Sequence[int] = ()
    """The event of each feature that has no column, since all columns are in use."""
    skipped: Sequence[int] = ()
    """The places of the records that `where` passes over."""
    numbers: NDArray[np.bool_] = _NONE
    """Which of the values are numbers, if they are to be scaled: see `columns.Placed`."""

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


class _Compiled:
    """Whether this process uses the compiled reader."""

    ready = False


def compiled_reader_ready() -> bool:
    """Whether this process uses the compiled reader."""
    return _Compiled.ready


def use_compiled_reader(use: bool) -> None:
    """Use the compiled reader in this process from now on, or no longer; it reads the same events faster.

    Without a kept result the first call compiles for seconds. Meanwhile the careful reader reads all events.
    """
    if use and ENABLED:
        for identity in (Identity(), Identity(features="hashed", bits=2), Identity(features="positional", dimension=1)):
            columns = columns_for(identity)
            columns.extend(["a"])
            for values in ([b'{"features":{"\\u0061":1,"new":1},"label":1}', b"[1]", None], [double_vector([1], 1)]):
                Decoder(identity, columns).decode_rows(ValueBuffer.of(values))
    _Compiled.ready = use and ENABLED


class Decoder:
    """Reads the events of one model. It looks features up in the columns and does not change them.

    >>> from service.learning.columns.columns import columns_for
    >>> decoder = Decoder(Identity(), columns_for(Identity()))
    >>> records = [b'{"features": {"a": 1e99}, "label": 1}', b'{"features": {"b": 3}, "label": 0}']
    >>> batch, rejects = decoder.decode(records)
    >>> batch.names, batch.values, batch.labels, batch.records
    (['b'], array([3.]), array([-1.]), [1])
    >>> rejects[0].reason, rejects[0].detail
    ('out-of-range', 'feature "a" is beyond ±1e+30')
    """

    def __init__(self, identity: Identity, columns: Columns) -> None:
        self._columns = columns
        self._careful = CarefulReader(identity)
        self.flattener = self._careful.flattener
        self._vectors = VectorReader(identity, self._careful.signs)
        self._positional = identity.features == "positional"
        self._rows: RowReader | None = None
        self._slices_without = 0
        with suppress(UnsupportedError):
            self._rows = RowReader.of_events(self.flattener, self._careful.signs)

    def decode(
        self, records: Sequence[bytes | None], enough: Callable[[], bool] | None = None
    ) -> tuple[Batch, list[Reject]]:
        """A slice of record values as a batch, and the records that are set aside.

        A record that was read is in one of the two, or among those that are skipped. After each one that takes time,
        `enough` says whether to leave the rest.
        """
        if self._rows is not None and _Compiled.ready:
            values = records if isinstance(records, ValueBuffer) else ValueBuffer.of(records)
            if values.forms is None or (self._positional and _all_vectors(values.forms, values.begins)):
                if not self._slices_without:
                    return self.decode_rows(values, enough)
                self._slices_without -= 1
        outcomes = _Outcomes(self._careful)
        events = list[tuple[int, Event]]()
        for i, raw in enumerate(records):
            if (event := outcomes.read(i, raw)) is not None:
                events.append((i, event))
            if enough is not None and enough():
                break
        placed = self._columns.place([event.features for _, event in events])
        signs, weights = (np.array([event[part] for _, event in events], np.float64) for part in (1, 2))
        return outcomes.batch(placed, signs, weights, [i for i, _ in events])

    def decode_rows(self, values: ValueBuffer, enough: Callable[[], bool] | None = None) -> tuple[Batch, list[Reject]]:
        """The same by the compiled reader; all values are JSON, or all are vectors."""
        assert self._rows is not None  # noqa: S101 - the caller has checked it
        outcomes = _Outcomes(self._careful)
        declined = 0

        def read_carefully(i: int) -> Event | None:
            nonlocal declined
            declined += 1
            return outcomes.read(i, values[i])

        if values.forms is None:
            rows = self._rows.read(values, read_carefully, enough)
        else:
            rows = self._vectors.read(values)
            is_left = np.ones(len(values), np.bool_)
            is_left[rows.records] = False
            for i in np.flatnonzero(is_left).tolist():
                read_carefully(i)
        self._slices_without = UNUSUAL_SLICES if declined > len(values) / 2 else 0
        placed = self._columns.place_rows(rows)
        return outcomes.batch(placed, rows.signs, rows.weights, rows.records.tolist(), rows.skipped.tolist())


class _Outcomes:
    """What became of the records of a slice that the careful reader read."""

    def __init__(self, careful: CarefulReader) -> None:
        self._careful = careful
        self._rejects = list[Reject]()
        self._skipped = list[int]()

    def read(self, i: int, raw: bytes | None) -> Event | None:
        """The event of record i; None if it is rejected or skipped, which is noted."""
        try:
            event = self._careful.read(raw)
        except Rejected as rejected:
            self._rejects.append(Reject(i, rejected.reason, str(rejected)))
            return None
        if event is None:
            self._skipped.append(i)
        return event

    def batch(
        self,
        placed: Placed,
        signs: NDArray[np.float64],
        weights: NDArray[np.float64],
        records: list[int],
        skipped: Sequence[int] = (),
    ) -> tuple[Batch, list[Reject]]:
        """The slice as a batch. `skipped` are the records that the compiled reader passed over."""
        ignored = [event for event, _, _ in placed.ignored]
        batch = Batch(
            placed.starts, placed.columns, placed.values, signs, weights, records, placed.names, ignored,
            sorted([*self._skipped, *skipped]), placed.numbers,
        )  # fmt: skip
        return batch, self._rejects


def _all_vectors(forms: NDArray[np.int64], begins: NDArray[np.int64]) -> bool:
    return bool(((forms == FORMS.index(DoubleVector)) | (begins < 0)).all())
