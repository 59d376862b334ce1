"""A model's state and the one way it changes: `Learner.apply`.

The learner is to Kafka what a protocol library is to sockets: it is fed with record bytes and offsets and returns
what happened. State is what `snapshots.head` puts into the state digest: identity, covered ranges, names, arrays,
counts. Beside it stand observations (the recent window, the norm's limit, runs), which are kept but not state.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import OutOfOrder
from service.learning import kernel
from service.learning.columns import columns_for
from service.learning.events import Batch, Decoder, Reject
from service.learning.identity import Identity

Ranges = dict[int, list[tuple[int, int]]]
"""Covered offsets by partition, as half-open [from, to) in ascending order; the last `to` is the next offset."""


class Counts(msgspec.Struct):
    """What a model counted since its first event. `confusion[truth][prediction]`, 0 negative and 1 positive."""

    confusion: list[list[int]] = msgspec.field(default_factory=lambda: [[0, 0], [0, 0]])
    mistakes: int = 0
    updates: int = 0
    ignored_features: int = 0
    rejected: dict[str, int] = {}

    @property
    def events(self) -> int:
        """Events learned."""
        return sum(map(sum, self.confusion))

    @property
    def wrong_predictions(self) -> int:
        """Events whose predicted label, before learning, differed from the true one."""
        return self.confusion[0][1] + self.confusion[1][0]


class Outcome(NamedTuple):
    """What one call of `apply` did: records consumed, those set aside, and why the model stopped, if it did."""

    consumed: int
    rejects: list[Reject]
    diverged: str | None


class Learner:
    """One model: weights, columns, covered ranges, counts. Not shared between threads."""

    def __init__(self, identity: Identity, *, window: int = 1000) -> None:
        self.identity = identity
        self.columns = columns_for(identity)
        self.covered: Ranges = {}
        self.counts = Counts()
        self.squared_norm_limit = 0.0
        self.runs: list[tuple[int, int, int]] = []
        self._recent = np.zeros(0, bool)
        self._window = window
        self._decoder = Decoder(identity, self.columns)
        self._w = np.zeros(0)
        self._fit_arrays()

    @property
    def weights(self) -> NDArray[np.float64]:
        """w, bias first; a view of the live array, of length len(columns)."""
        return self._w[: len(self.columns)]

    @property
    def next(self) -> dict[int, int]:
        """The offset of the next record to learn, by partition."""
        return {partition: ranges[-1][1] for partition, ranges in self.covered.items()}

    @property
    def recent(self) -> NDArray[np.bool_]:
        """For each event of the recent window, oldest first: was its prediction wrong?"""
        return self._recent[-self._window :]

    @property
    def squared_norm(self) -> float:
        """‖w‖², the bias included."""
        return float(self.weights @ self.weights)

    def begin(self, starts: Mapping[int, int]) -> None:
        """Cover nothing yet, from these offsets on. Partitions that are covered already stay as they are."""
        for partition, offset in sorted(starts.items()):
            self.covered.setdefault(partition, [(offset, offset)])

    def load(
        self, weights: NDArray[np.float64], covered: Ranges, counts: Counts, limit: float, recent: NDArray[np.bool_]
    ) -> None:
        """Take over restored state, these very arrays; the columns have their names already."""
        self._w = weights
        self._fit_arrays()
        self.covered, self.counts, self.squared_norm_limit, self._recent = covered, counts, limit, recent

    def pass_over(self, partition: int, offset: int) -> None:
        """Cover offsets up to `offset` that hold no record: compacted away, control records, aborted."""
        self._cover(partition, offset)

    def apply(self, partition: int, first: int, records: Sequence[bytes | None]) -> Outcome:
        """Learn the values of the records at offsets `first`, `first` + 1, … of a partition, in order.

        Raises OutOfOrder when `first` is not the partition's next offset. When the model diverges, it stops
        before that record: `Outcome.consumed` is then smaller than the number of records.
        """
        if first != self.next.get(partition):
            raise OutOfOrder(f"partition {partition}: offset {first} offered, {self.next.get(partition)} is next")
        known = len(self.columns.names)
        batch, rejects, ignored = self._decoder.decode(records)
        self._fit_arrays()
        scores = np.empty(len(batch.labels))
        identity = self.identity
        done, self.squared_norm_limit = kernel.learn(
            identity.rule, identity.eta, self._w, batch, scores, self.squared_norm_limit
        )
        consumed, diverged = len(records), None
        if done < len(batch.labels):
            # The events from here on changed nothing; neither may their names, rejections and counts.
            consumed = batch.records[done]
            diverged = f"rule {identity.rule} with eta {identity.eta:g}: the update at offset {first + consumed} of partition {partition} is not finite"  # noqa: E501
            self.columns.truncate(known)
            batch, rejects, ignored = self._decoder.decode(records[:consumed])
        self._count(batch, scores[:done], rejects, ignored)
        self._cover(partition, first + consumed)
        return Outcome(consumed, rejects, diverged)

    def score(self, features: Mapping[str, float] | Sequence[float]) -> tuple[float, int]:
        """s = w·x for checked features of this model's mode, and how many of them the model does not know.

        A plain loop in the kernel's order: calling compiled code for one costs more, and `sum` has other bits.
        """
        pairs, unknown = self.columns.find(features)
        w = memoryview(self._w)  # type: ignore[arg-type]
        s: float = w[0]
        for column, value in pairs:
            s += w[column] * value
        return s, unknown

    def label(self, score: float) -> bool | int | float | str:
        """The label that a score predicts: positive only when s > 0."""
        return (self.identity.labels or (-1, 1))[score > 0.0]

    def largest(self, count: int) -> list[int]:
        """The columns of the largest weights by size, the bias aside, largest first."""
        sizes = np.abs(self.weights[1:])
        least = np.partition(sizes, -count)[-count] if count < len(sizes) else 0.0
        above, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
        chosen = np.concatenate([above, equal[: count - len(above)]])
        order = np.lexsort((chosen, -sizes[chosen]))[:count]
        return [int(i) + 1 for i in chosen[order]]

    def accuracy(self) -> tuple[float | None, float | None]:
        """Prequential accuracy (each event predicted before it is learned) over all and over the recent window."""
        events = self.counts.events
        if not events:
            return None, None
        return 1.0 - self.counts.wrong_predictions / events, 1.0 - float(self.recent.mean())

    def _fit_arrays(self) -> None:
        # Unused columns are zero, the weight that a new column starts with.
        short = len(self.columns) - len(self._w)
        if short > 0:
            self._w = np.concatenate([self._w, np.zeros(max(short, len(self._w)))])

    def _count(self, batch: Batch, scores: NDArray[np.float64], rejects: list[Reject], ignored: int) -> None:
        counts, truth, predicted = self.counts, batch.labels > 0.0, scores > 0.0
        mistakes = int(np.count_nonzero(batch.labels * scores <= 0.0))
        counts.mistakes += mistakes
        counts.updates += mistakes
        counts.ignored_features += ignored
        table = np.bincount(2 * truth + predicted, minlength=4).tolist()
        for row, new in zip(counts.confusion, (table[:2], table[2:]), strict=True):
            row[0] += new[0]
            row[1] += new[1]
        for reject in rejects:
            counts.rejected[reject.reason] = counts.rejected.get(reject.reason, 0) + 1
        self._recent = np.concatenate([self._recent, truth != predicted])
        if len(self._recent) > 16 * self._window:
            self._recent = self.recent.copy()

    def _cover(self, partition: int, to: int) -> None:
        start, at = self.covered[partition][-1]
        if to == at:
            return
        self.covered[partition][-1] = (start, to)
        # The order across partitions is this learner's own, so it is recorded; with one it stays a single run.
        if self.runs and self.runs[-1][0] == partition and self.runs[-1][2] == at:
            self.runs[-1] = (partition, self.runs[-1][1], to)
        else:
            self.runs.append((partition, at, to))
