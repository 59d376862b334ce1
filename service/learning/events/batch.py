"""Record values to a `Batch` of columns, and a reason for each record that breaks the format.

The compiled reader accepts usual records and declines the others; the careful reader reads those. Features are read
first, and only accepted events get columns. So no record is read twice, and nothing has to be undone if only a part of
a slice is learned. Whether a record is accepted depends on its bytes and the identity, never on other records.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from service.errors import Rejected
from service.learning.columns.columns import Batch, Columns, columns_for
from service.learning.events.careful_reader import CarefulReader, Event
from service.learning.events.compiled.path_tree import UnsupportedError
from service.learning.events.compiled.row_reader import Enough, RowReader
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
_VECTOR = FORMS.index(DoubleVector)


class Reject(NamedTuple):
    """A record that is not learned: its index in the slice, one of REASONS, one line of detail."""

    record: int
    reason: str
    detail: str


def use_compiled_reader(use: bool) -> None:
    """Use the compiled reader in this process from now on, or stop using it. It reads the same events faster.

    If its code is not cached, the first call compiles for seconds. Meanwhile the careful reader reads all events.
    """
    if use and ENABLED:
        for identity in (Identity(), Identity(features="hashed", bits=2), Identity(features="positional", dimension=1)):
            columns = columns_for(identity)
            columns.extend(["a"])
            for values in ([b'{"features":{"\\u0061":1,"new":1},"label":1}', b"[1]", None], [double_vector([1], 1)]):
                Decoder(identity, columns).decode_rows(ValueBuffer.of(values))
    Decoder.compiled = use and ENABLED


class Decoder:
    """Reads the events of one model. It looks up columns and does not change them.

    >>> from service.learning.columns.columns import columns_for
    >>> decoder = Decoder(Identity(), columns_for(Identity()))
    >>> records = [b'{"features": {"a": 1e99}, "label": 1}', b'{"features": {"b": 3}, "label": 0}']
    >>> batch, rejects = decoder.decode(records)
    >>> batch.names, batch.values, batch.labels, batch.records
    (['b'], array([3.]), array([-1.]), [1])
    >>> rejects[0].reason, rejects[0].detail
    ('out-of-range', 'feature "a" is beyond ±1e+30')
    """

    compiled = False
    """Whether this process uses the compiled reader."""

    def __init__(self, identity: Identity, columns: Columns) -> None:
        self._columns = columns
        self._careful = CarefulReader(identity)
        self.flattener = self._careful.flattener
        self._vectors = VectorReader(identity, self._careful.signs)
        self._positional = identity.features == "positional"
        self._rows: RowReader | None = None
        self._slices_without = 0
        with suppress(UnsupportedError):
            self._rows = RowReader.of_events(self.flattener, self._careful.paths, self._careful.signs)

    def decode(self, records: Sequence[bytes | None], enough: Enough = None) -> tuple[Batch, list[Reject]]:
        """A slice of record values as a batch, and the rejected records.

        A record that was read is in one of the two, or is skipped. `enough` may say to leave the rest.
        """
        if self._rows is not None and self.compiled:
            values = records if isinstance(records, ValueBuffer) else ValueBuffer.of(records)
            forms = values.forms
            if forms is None or (self._positional and np.all((forms == _VECTOR) | (values.begins < 0))):
                if not self._slices_without:
                    return self.decode_rows(values, enough)
                self._slices_without -= 1
        careful, events = _CarefulSlice(self._careful), dict[int, Event]()
        for i, raw in enumerate(records):
            if (event := careful.read(i, raw)) is not None:
                events[i] = event
            if enough is not None and enough():
                break
        batch = self._columns.place([event.features for event in events.values()])
        signs, weights = (np.array([event[part] for event in events.values()], np.float64) for part in (1, 2))
        batch = batch._replace(labels=signs, weights=weights, records=[*events], skipped=careful.skipped)
        return batch, careful.rejects

    def decode_rows(self, values: ValueBuffer, enough: Enough = None) -> tuple[Batch, list[Reject]]:
        """As `decode`, by the compiled reader. The values that are not None are all JSON, or all vectors."""
        assert self._rows is not None  # noqa: S101 - the caller has checked it
        careful = _CarefulSlice(self._careful)
        if values.forms is None:
            rows = self._rows.read(values, lambda i: careful.read(i, values[i]), enough)
        else:
            rows = self._vectors.read(values)
            for i in np.delete(np.arange(len(values)), rows.records).tolist():
                careful.read(i, values[i])
        self._slices_without = UNUSUAL_SLICES if careful.count > len(values) / 2 else 0
        records, skipped = rows.records.tolist(), sorted([*careful.skipped, *rows.skipped.tolist()])
        batch = self._columns.place_rows(rows)
        batch = batch._replace(labels=rows.signs, weights=rows.weights, records=records, skipped=skipped)
        return batch, careful.rejects


class _CarefulSlice:
    """The careful reader for a slice. It collects what is rejected or skipped."""

    def __init__(self, reader: CarefulReader) -> None:
        self._reader, self.count = reader, 0
        self.rejects, self.skipped = list[Reject](), list[int]()

    def read(self, i: int, raw: bytes | None) -> Event | None:
        """The event of record i; None if it is rejected or skipped."""
        self.count += 1
        try:
            event = self._reader.read(raw)
        except Rejected as rejected:
            self.rejects.append(Reject(i, rejected.reason, str(rejected)))
            return None
        if event is None:
            self.skipped.append(i)
        return event
