"""Events as a reader returns them: without columns."""

from collections.abc import Callable, Sequence
from ctypes import string_at
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from mmh3 import mmh3_x64_128_digest
from numpy.typing import NDArray

from service.learning.columns.name_table import PADDING_BYTES, Utf8Names, encode_names, gather_names
from service.learning.events.flatten import Features

REASONS = (
    "empty", "not-json", "not-msgpack", "trailing-bytes", "missing-field", "wrong-type", "duplicate-feature",
    "unknown-label", "not-finite", "out-of-range", "bad-weight", "wrong-length", "too-many-features", "name-too-long",
    "too-large",
)  # fmt: skip

TimeBudget = Callable[[], bool] | None
"""Says after a value that takes time whether to leave the rest."""


class Reject(NamedTuple):
    """A record that is not learned: its index in the slice, one of REASONS, one line of detail, the member at fault."""

    record: int
    reason: str
    detail: str
    pointer: str = ""


class Event(NamedTuple):
    """An event as it is learned."""

    features: Features
    label: float
    """±1, or the number of the label's class; NaN if the event has no label."""
    weight: float
    id: str | None
    """A string as it is, or a number as its text in the record: "7" and 7 are one id. None if the event has no id."""


class FeatureRows(NamedTuple):
    """Event i has the features `starts[i]` to before `starts[i + 1]`.

    `names` has the offset from `address` and the size of each feature's name, and `hashes` its hash. Positional
    features have `values` alone. The arrays are the reader's: its next call of `read` overwrites them.
    """

    address: int
    buffers: Sequence[NDArray[np.uint8]]
    """The arrays that hold the names; as long as these rows exist, so do the arrays."""
    names: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    values: NDArray[np.float64]
    is_number: NDArray[np.bool_]
    starts: NDArray[np.uint64]

    def names_of(self, features: NDArray[np.int64]) -> Utf8Names:
        """The names of these features."""
        return gathered(self.address, self.names[features])


def gathered(address: int, names: NDArray[np.int64]) -> Utf8Names:
    """Names, each an offset from `address` and a size, in a buffer of their own."""
    ends = np.concatenate([[0], names[:, 1].cumsum()])
    text = np.empty(ends[-1] + PADDING_BYTES, np.uint8)
    gather_names(address, names, text)
    return Utf8Names(text, ends, len(names))


class EventIds(Sequence[str | None]):
    """The ids of events in the buffers of their `FeatureRows`. A string is made when it is read."""

    def __init__(self, address: int, buffers: Sequence[NDArray[np.uint8]], spans: NDArray[np.int64]) -> None:
        """Column i of `spans` has the offset from `address` and the size of id i; -1 as the size if there is none."""
        self._address, self._buffers, self._spans = address, buffers, spans

    @classmethod
    def from_list(cls, ids: Sequence[str]) -> Self:
        """The ids in this list."""
        texts = encode_names(ids)
        return cls(texts.text.ctypes.data, [texts.text], np.stack([texts.ends[: len(ids)], np.diff(texts.ends)]))

    def __len__(self) -> int:
        return len(self._spans[0])

    def __getitem__(self, i: Any) -> Any:
        offset, size = self._spans[:, i].tolist()
        return None if size < 0 else string_at(self._address + offset, size).decode()

    def hashes(self, seed: int) -> NDArray[np.uint64]:
        """A hash of each id, in two columns; all ids must be there."""
        ids = gathered(self._address, self._spans.T)
        raw, cuts = ids.text.tobytes(), pairwise(ids.ends.tolist())
        return np.frombuffer(b"".join([mmh3_x64_128_digest(raw[i:j], seed) for i, j in cuts]), "<u8").reshape(-1, 2)


class ReadEvents(NamedTuple):
    """The events of a slice of records, in order. A record that was read is an event, or is skipped or rejected."""

    features: FeatureRows | Sequence[Features]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    ids: Sequence[str | None]
    records: list[int]
    """The index of each event in the slice."""
    skipped: list[int]
    """The indices of the records that `where` skips."""
    rejects: list[Reject]

    @property
    def size(self) -> int:
        """The number of records that were read."""
        return len(self.records) + len(self.skipped) + len(self.rejects)

    def moved(self, places: Sequence[int]) -> Self:
        """The same, with the record at each index i at `places[i]`."""
        rejects = [reject._replace(record=places[reject.record]) for reject in self.rejects]
        records, skipped = ([places[i] for i in indices] for indices in (self.records, self.skipped))
        return self._replace(records=records, skipped=skipped, rejects=rejects)


NOTHING_READ = ReadEvents((), np.zeros(0), np.zeros(0), (), [], [], [])
