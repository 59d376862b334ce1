"""A slice of record values to events, and a reason for each record that breaks the format.

The compiled reader accepts usual records and declines the others; the careful reader reads those. Only accepted events
get columns, see `Columns.decode`. So no record is read twice, and nothing has to be undone if only a part of a slice is
learned. Whether a record is accepted depends on its bytes and the identity, never on other records.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.columns.columns import columns_for
from service.learning.events.careful_reader import CarefulReader
from service.learning.events.compiled.compiled_readers import RowReader, VectorReader
from service.learning.events.compiled.path_tree import UnsupportedError
from service.learning.events.read_events import Event, ReadEvents, Reject, TimeBudget
from service.learning.events.value_formats import DOUBLE_VECTOR, JSON, ValueBuffer, encode_vector
from service.learning.identity import Identity
from service.learning.jit import ENABLED

UNUSUAL_SLICES = 50
"""After a slice of mostly unusual records the compiled reader is not tried for this many slices."""
NONE_BEFORE = np.zeros(0, np.bool_)


def use_compiled_reader(use: bool) -> None:
    """Use the compiled reader in this process from now on, or stop using it. It reads the same events faster.

    If its code is not cached, the first call compiles for seconds. Meanwhile the careful reader reads all events.
    """
    if use and ENABLED:
        for identity in (Identity(), Identity(features="hashed", bits=2), Identity(features="positional", dimension=1)):
            reader, columns = EventReader(identity), columns_for(identity)
            reader.compiled = True
            columns.extend(["a"])
            texts = [b'{"features":{"\\u0061":1,"new":1},"label":1}', b"[1]", None]
            for values, value_format in ((texts, JSON), ([encode_vector([1], 1)], DOUBLE_VECTOR)):
                columns.decode(reader.read(ValueBuffer.from_values(values, [value_format] * len(values))))
    EventReader.compiled = use and ENABLED


class EventReader:
    """Reads the events of one model.

    >>> reader = EventReader(Identity())
    >>> events = reader.read([b'{"features": {"a": 1e99}, "label": 1}', b'{"features": {"b": 3}, "label": 0, "id": 7}'])
    >>> events.features, events.labels, events.ids, events.records
    ([{'b': 3.0}], array([-1.]), ['7'], [1])
    >>> events.rejects[0].reason, events.rejects[0].detail
    ('out-of-range', 'feature "a" is beyond ±1e+30')
    """

    compiled = False
    """Whether this process uses the compiled reader."""

    def __init__(self, identity: Identity, labels: bool = False) -> None:
        """`labels` reads records that are labels of a join, as events without features.

        A label that may be absent or null is read as NaN.
        """
        self._careful, self._as_before = CarefulReader(identity, labels), CarefulReader(identity, labels, True)
        self.flattener, self.signs = self._careful.flattener, self._careful.signs
        self._compiled_readers: dict[str, RowReader | VectorReader] = {}
        self._slices_without = 0
        with suppress(UnsupportedError):
            self._compiled_readers["rows"] = RowReader.for_records(self._careful)
            if identity.features == "positional" and not identity.needs_ids:
                self._compiled_readers["vectors"] = VectorReader(identity, self._careful.signs)

    def read(
        self,
        values: Sequence[bytes | None],
        time_is_up: TimeBudget = None,
        as_before: NDArray[np.bool_] = NONE_BEFORE,
    ) -> ReadEvents:
        """The events of a slice of record values. If the time is up, the rest of the slice is left.

        `as_before` says of each value whether a release up to 0.2 has read it; empty if none of them.
        """
        buffer = ValueBuffer.from_values(values)
        events: dict[int, Event] = {}
        skipped: list[int] = []
        rejects: list[Reject] = []

        def read_carefully(i: int) -> Event | None:
            try:
                careful = self._as_before if len(as_before) and as_before[i] else self._careful
                event = careful.read(buffer[i], buffer.format_at(i))
            except Rejected as rejected:
                rejects.append(Reject(i, rejected.reason, str(rejected), rejected.pointer))
                return None
            if event is None:
                skipped.append(i)
            else:
                events[i] = event
            return event

        only_format = buffer.only_format if self.compiled else None
        if only_format and (reader := self._compiled_readers.get(only_format.compiled_reader)):
            if not self._slices_without:
                read = reader.read(buffer, read_carefully, time_is_up, not (len(as_before) and as_before.any()))
                read_count = len(events) + len(skipped) + len(rejects)
                self._slices_without = UNUSUAL_SLICES if read_count > len(buffer) / 2 else 0
                if self._careful.label_value is not None:
                    read.labels[:] = self._careful.label_value
                if not (skipped or rejects):
                    return read
                return read._replace(skipped=sorted([*read.skipped, *skipped]), rejects=rejects)
            self._slices_without -= 1
        for i in range(len(buffer)):
            read_carefully(i)
            if time_is_up is not None and time_is_up():
                break
        labels, weights = (np.array([event[part] for event in events.values()]) for part in (1, 2))
        features, ids = [event.features for event in events.values()], [event.id for event in events.values()]
        return ReadEvents(features, labels, weights, ids, [*events], skipped, rejects)
