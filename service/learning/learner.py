"""A model's state and the one way it changes: `Learner.apply`.

The learner is to Kafka what a protocol library is to sockets: it is fed with record bytes and offsets and returns
what happened. State is what `snapshots.head` puts into the state digest: identity, covered ranges, names, arrays,
counts. Beside it stand observations (the recent window, the norm's limit, runs), which are kept but not state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import ConfigurationError, OutOfOrder
from service.learning import kernel
from service.learning.average import part
from service.learning.bounds import ROUNDING, Stretch
from service.learning.columns import columns_for
from service.learning.events import Batch, Decoder, Reject
from service.learning.identity import MAX_SQUARED_NORM, SUMS, Identity
from service.learning.kernel import Learned
from service.learning.options import DEFAULT, Options
from service.learning.recent import Recent
from service.learning.rules import RULES
from service.learning.scale import Scaler
from service.learning.start import initial
from service.learning.watch import Watch
from service.learning.weights import Weights

Ranges = dict[int, list[tuple[int, int]]]
"""Covered offsets by partition, as half-open [from, to) in ascending order; the last `to` is the next offset."""


def with_hole(ranges: Sequence[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """These ranges with the next offset moved on to `offset`: what is between is a hole, never learned."""
    start, at = ranges[-1]
    if offset == at:
        return list(ranges)
    # An empty range behind a hole only says where that one ended; an empty first one says where the model began.
    held = ranges[:-1] if start == at and len(ranges) > 1 else ranges
    return [*held, (offset, offset)]


class Counts(msgspec.Struct, forbid_unknown_fields=True):
    """What a model counted since its first event. `confusion[truth][prediction]`, 0 negative and 1 positive."""

    confusion: list[list[int]] = msgspec.field(default_factory=lambda: [[0, 0], [0, 0]])
    mistakes: int = 0
    updates: int = 0
    ignored_features: int = 0
    skipped: int = 0
    """Records that `where` passed over."""
    rejected: dict[str, int] = {}

    @property
    def events(self) -> int:
        """Events learned."""
        return sum(map(sum, self.confusion))

    @property
    def records(self) -> int:
        """Records that were read: learned, set aside or passed over."""
        return self.events + sum(self.rejected.values()) + self.skipped

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
    """One model: weights, columns, covered ranges, counts. Not shared between threads.

    >>> learner = Learner(Identity())
    >>> learner.begin({0: 0})
    >>> outcome = learner.apply(0, 0, [b'{"features": {"a": 2}, "label": 1}', b"no event"])
    >>> [reject.reason for reject in outcome.rejects], learner.next
    (['not-json'], {0: 2})
    >>> learner.score({"a": 1.0, "never seen": 1.0})
    (3.0, 1)
    """

    def __init__(self, identity: Identity, *, options: Options = DEFAULT, start: Weights | None = None) -> None:
        """`start` has the weights of an identity whose start is given ones; a snapshot has them already."""
        self.identity = identity
        self.columns = columns_for(identity)
        self.covered: Ranges = {}
        self.counts = Counts()
        self.runs: list[tuple[int, int, int]] = []
        self.watch = Watch(identity, options)
        self.diverged: str | None = None
        """Why nothing more is learned, and these weights are not to answer: the next event's update, or ‖w‖² itself."""
        of, slope = RULES[identity.rule].probability, identity.parameter
        self.probability = (lambda s: of(s, slope)) if of else None
        """What a score says of the positive label, where the rule models that."""
        self._reach = math.inf
        self._part = 1.0
        """What `late` is multiplied by, where it is taken off the weights."""
        self._decoder = Decoder(identity, self.columns)
        self.flattener = self._decoder.flattener
        self.scaler = Scaler() if identity.scale == "standard" else None
        """What values are scaled by, if at all."""
        self._w = self._late = np.zeros(0)
        if start is not None:
            self.columns.extend(start.names or ())
            self._w = start.vector
            if len(self._w) != len(self.columns):
                raise ConfigurationError(
                    f"start: {len(self._w) - 1} weights are given where the model has {len(self.columns) - 1} features"
                )
        self._make_room(len(self.columns))
        self.watch.grow(self.weights, 0, self.columns.names)
        self.watch.refer_to_given(self.weights, 0, self.columns.names)

    @property
    def weights(self) -> NDArray[np.float64]:
        """w, bias first; a view of the live array, of length len(columns)."""
        return self._w[: len(self.columns)]

    @property
    def next(self) -> dict[int, int]:
        """The offset of the next record to learn, by partition."""
        return {partition: ranges[-1][1] for partition, ranges in self.covered.items()}

    @property
    def average(self) -> NDArray[np.float64] | None:
        """The average of the weights after each event so far that the identity keeps, if any: see `average`."""
        if not self.identity.average:
            return None
        return self.weights - self._late[: len(self.columns)] * self._part

    @property
    def averaged(self) -> bool:
        """Whether the average answers: where that is asked for, and there is one."""
        return bool(self.identity.average) and self.watch.options.serve == "average"

    @property
    def served(self) -> NDArray[np.float64]:
        """The weights that answer."""
        average = self.average if self.averaged else None
        return self.weights if average is None else average

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """What is to be stored, by name: w, and where the average is kept what makes it of w (see the kernel)."""
        every = {"w": self.weights, "late": self._late[: len(self.columns)]}
        every |= self.scaler.arrays(len(self.columns)) if self.scaler else {}
        return {name: every[name] for name in self.identity.arrays}

    @property
    def squared_norm(self) -> float:
        """‖w‖², the bias included."""
        with np.errstate(over="ignore"):  # an older release let them grow without a limit
            return float(self.weights @ self.weights)

    def begin(self, starts: Mapping[int, int]) -> None:
        """Cover nothing yet, from these offsets on. Partitions that are covered already stay as they are."""
        for partition, offset in sorted(starts.items()):
            self.covered.setdefault(partition, [(offset, offset)])

    def load(
        self,
        arrays: Mapping[str, NDArray[np.float64]],
        covered: Ranges,
        counts: Counts,
        squared_steps: float,
        recent: Recent,
        stretch: Stretch | None,
        diverged: str | None = None,
    ) -> None:
        """Take over restored state, these very objects; the columns have their names already."""
        self._w, self._late = arrays["w"], arrays.get("late", self._late)
        if self.scaler:
            self.scaler = Scaler.of([arrays[name] for name in SUMS])
        self.covered, self.counts = covered, counts
        self._make_room(len(self.columns))
        self._reach, self._part = math.inf, part(self.identity, counts.events)
        self.diverged, norm = diverged, self.squared_norm
        if norm > MAX_SQUARED_NORM * (1.0 + ROUNDING):  # saved by a release that had no limit
            self.diverged = f"the squared norm of the weights is {norm:g}, beyond {MAX_SQUARED_NORM:g}"
        self.watch.restored(recent, squared_steps, stretch, self.weights, counts.updates, self.columns.names)

    def begin_stretch(self) -> bool:
        """Begin a new stretch of the bound, which refers to where the weights, or their average, point now.

        Nothing, and False, where the reference is given.
        """
        vector = self.weights.copy() if self.average is None else self.average
        return self.watch.begin_stretch(vector, self.weights, self.counts.updates)

    def pass_over(self, partition: int, offset: int) -> None:
        """Cover offsets up to `offset` that hold no record: compacted away, control records, aborted."""
        self._cover(partition, offset)

    def skip(self, partition: int, offset: int) -> None:
        """Go on at `offset`, and leave out the records before it: a hole in what is covered."""
        self.covered[partition] = with_hole(self.covered[partition], offset)

    def apply(
        self,
        partition: int,
        first: int,
        records: Sequence[bytes | None],
        enough: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Learn the values of the records at offsets `first`, `first` + 1, … of a partition, in order.

        Raises OutOfOrder when `first` is not the partition's next offset. `Outcome.consumed` is smaller than the number
        of records when the model diverges, which stops it before that record, or when it was `enough`, which is asked
        after each.
        """
        if first != self.next.get(partition):
            raise OutOfOrder(f"partition {partition}: offset {first} offered, {self.next.get(partition)} is next")
        batch, rejects = self._decoder.decode(records, enough)
        identity, known = self.identity, len(self.columns)
        self._make_room(known + len(batch.names))
        if self.scaler:
            batch = self.scaler.learn(batch)
        learned = kernel.learn(identity, self._w, self._late, batch, self.counts.events, self._reach)
        self._reach = learned.reach
        consumed, diverged = len(batch.records) + len(rejects) + len(batch.skipped), None
        done = len(learned.scores)
        if done < len(batch.labels):
            # The events from here on changed nothing; neither may their names, rejections and counts.
            consumed = batch.records[done]
            diverged = self.diverged = (
                f"rule {identity.rule} with eta {identity.eta:g}: the update at offset {first + consumed} of partition "
                f"{partition} takes the squared norm of the weights beyond {MAX_SQUARED_NORM:g}"
            )
            batch, rejects = batch.first(done), [reject for reject in rejects if reject.record < consumed]
            if self.scaler:
                self.scaler.undo(done)
        if batch.names:
            self.columns.extend(batch.names)
            started = initial(identity.start, known, len(batch.names))
            self.watch.grow(started, known, self.columns.names)
        self._count(batch, learned, rejects)
        self._part = part(identity, self.counts.events)
        self._cover(partition, first + consumed)
        return Outcome(consumed, rejects, diverged)

    def score(self, features: Mapping[str, float] | Sequence[float]) -> tuple[float, int]:
        """s = w·x for checked features of this model's mode, and how many of them the model does not know.

        w are the weights that are served. A plain loop in the kernel's order: calling compiled code for one costs more,
        and `sum` has other bits.
        """
        pairs, unknown = self.columns.find(features)
        if self.scaler:
            pairs = self.scaler.merged(pairs)
        w = memoryview(self._w)  # type: ignore[arg-type]
        s: float = w[0]
        if not self.averaged:
            for column, value in pairs:
                s += w[column] * value
            return s, unknown
        late, own = memoryview(self._late), self._part  # type: ignore[arg-type]
        s -= late[0] * own
        for column, value in pairs:
            s += (w[column] - late[column] * own) * value
        return s, unknown

    def label(self, score: float) -> bool | int | float | str:
        """The label that a score predicts: positive when s > 0, and where the tie is positive also when s = 0."""
        return (self.identity.labels or (-1, 1))[self.identity.decide(score)]

    def largest(self, count: int) -> list[int]:
        """The columns of the largest weights by size, the bias aside, largest first."""
        sizes = np.abs(self.served[1:])
        least = np.partition(sizes, -count)[-count] if count < len(sizes) else 0.0
        above, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
        chosen = np.concatenate([above, equal[: count - len(above)]])
        order = np.lexsort((chosen, -sizes[chosen]))[:count]
        return [int(i) + 1 for i in chosen[order]]

    def _make_room(self, count: int) -> None:
        """Let the arrays have so many columns, and more: those that are not in use have what a new one begins with."""
        have = len(self._w)
        if have < count:
            self._w = np.concatenate([self._w, initial(self.identity.start, have, max(count - have, have))])
        if self.identity.average and len(self._late) < len(self._w):
            self._late = np.concatenate([self._late, np.zeros(len(self._w) - len(self._late))])
        if self.scaler:
            self.scaler.make_room(len(self._w))

    def _count(self, batch: Batch, learned: Learned, rejects: list[Reject]) -> None:
        counts, scores, truth = self.counts, learned.scores, batch.labels > 0.0
        predicted = self.identity.decide(scores)
        counts.mistakes += int(np.count_nonzero(batch.labels * scores <= 0.0))
        counts.updates += int(np.count_nonzero(learned.steps))
        counts.ignored_features += len(batch.ignored)
        counts.skipped += len(batch.skipped)
        # The more frequent label of all events before this one; of equals the negative.
        negative, positive = map(sum, counts.confusion)
        usual = 2 * (positive + np.cumsum(truth) - truth) > negative + positive + np.arange(len(truth))
        table = np.bincount(2 * truth + predicted, minlength=4).tolist()
        for row, new in zip(counts.confusion, (table[:2], table[2:]), strict=True):
            row[0] += new[0]
            row[1] += new[1]
        for reject in rejects:
            counts.rejected[reject.reason] = counts.rejected.get(reject.reason, 0) + 1
        averaged = self.identity.decide(learned.averages) != truth if self.identity.average else truth[:0]
        self.watch.follow(batch, learned, predicted != truth, averaged, usual != truth)

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
