"""A classifier: weights over columns, learned from decoded batches by one rule, with counts and observations.

It is independent of records and of the log: `learner.Learner` reads these.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.learning.columns.columns import Batch, ColumnPairs, Columns
from service.learning.evaluation.confusion import Confusion
from service.learning.evaluation.mistake_bound import ROUNDING
from service.learning.evaluation.observations import ModelObservations
from service.learning.identity import MAX_SQUARED_NORM, RANDOM, Identity, Label
from service.learning.jit import compiled
from service.learning.kernel import kernel
from service.learning.kernel.kernel import Learned, accumulator_factor, squared_norm
from service.learning.options import BEST, Options
from service.learning.records import PartitionId, Place
from service.learning.rules import RULES

MAX_SCANNED_LABELS = 30
"""With more labels, to look at each cell of the confusion takes longer than to sort the events."""
Scores = float | NDArray[np.float64]
"""The score w·x of one event; with three labels or more, one score for each label in their order."""


class Counts(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """The counts of a model since its first event. `confusion[truth][prediction]` is by the indices of the labels.

    A thousand labels make a million cells, so sums over them are cached: only `add` changes the confusion.
    """

    confusion: list[list[int]] = msgspec.field(default_factory=lambda: [[0, 0], [0, 0]])
    mistakes: int = 0
    updates: int = 0
    ignored_features: int = 0
    skipped: int = 0
    """Records that `where` passed over."""
    rejected: dict[str, int] = {}
    join: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """What happened to the records of a join: see `join.memory.COUNTS`."""

    @cached_property
    def by_label(self) -> list[int]:
        """The number of events of each label."""
        return [sum(row) for row in self.confusion]

    @cached_property
    def events(self) -> int:
        """The number of events learned."""
        return sum(self.by_label)

    def add(self, truth: NDArray[np.intp], predicted: NDArray[np.intp]) -> None:
        """Count events by the indices of their labels and of the predicted labels."""
        classes = len(self.confusion)
        self.events += len(truth)
        cells = truth * classes + predicted
        if classes > MAX_SCANNED_LABELS:
            used, numbers = np.unique(cells, return_counts=True)
        else:
            numbers = np.bincount(cells)
            (used,) = numbers.nonzero()
            numbers = numbers[used]
        for cell, n in zip(used.tolist(), numbers.tolist(), strict=True):
            self.confusion[cell // classes][cell % classes] += n
            self.by_label[cell // classes] += n

    def copy(self) -> "Counts":
        """A copy that changes independently."""
        return replace(self, confusion=[row[:] for row in self.confusion], rejected=dict(self.rejected))

    @property
    def right(self) -> list[int]:
        """The number of events of each label that were predicted rightly."""
        return [row[i] for i, row in enumerate(self.confusion)]

    @property
    def records(self) -> int:
        """The number of records read: learned, rejected, passed over or joined."""
        return self.join["records"] if self.join else self.events + sum(self.rejected.values()) + self.skipped

    @property
    def wrong_predictions(self) -> int:
        """The number of events whose label was predicted wrongly before they were learned."""
        return self.events - sum(self.right)


def initial_weights(identity: Identity, first: int, count: int) -> NDArray[np.float64]:
    """The first weights of `count` columns from `first` on; zeros if they come from a file, which is not read here.

    With three labels or more the shape is (count, classes): each class has its own numbers.
    """
    shape, width = ((count, identity.classes), identity.classes) if identity.multiclass else ((count,), 1)
    if not identity.start.startswith(RANDOM):
        return np.zeros(shape)
    # Steele, Lea and Flood's splitmix64 of seed and column: the same on every machine, in any order of columns.
    z = np.arange(first * width + 1, (first + count) * width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(int(identity.start.removeprefix(RANDOM)))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (2.0 * unit - 1.0).reshape(shape)


def state_of(identity: Identity, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """The state as the kernel uses it, from arrays as they are stored: see `Classifier.arrays`."""
    state = np.stack([arrays[name] for name in identity.weight_arrays], axis=1)
    return state.reshape(len(state), -1, identity.classes) if identity.multiclass else state


class Classifier:
    """Weights of one rule. Other classifiers may share its columns; their owner calls `make_room` for new ones."""

    def __init__(self, identity: Identity, columns: Columns, options: Options) -> None:
        self.identity, self.columns = identity, columns
        self.counts = Counts([[0] * identity.classes for _ in range(identity.classes)])
        self.observations = ModelObservations(identity, options)
        self.diverged: str | None = None
        """The reason why it learns no more and does not answer: the next event's update, or ‖w‖² itself."""
        self.diverged_at: tuple[PartitionId, int] | None = None
        """Partition and offset of the event whose update would have diverged, if any; a candidate stores it."""
        probability, slope = RULES[identity.rule].probability, identity.parameter
        self.probability = (lambda s: probability(s, slope)) if probability and not identity.multiclass else None
        """The probability of the positive label by the score, if the rule models it."""
        above = options.positive_above
        self.decide = identity.decide if above is None else lambda s: s > above
        """Whether a score, or each of an array, is answered with the positive label."""
        self._reach = math.inf
        self._part = 1.0
        """The factor of `average_accumulator` in the average, w - average_accumulator·part."""
        self._state = np.zeros((0, 1 + bool(identity.average), *([identity.classes] if identity.multiclass else [])))
        """The state as `kernel.learn` changes it, with spare columns for later events."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """w, bias first: a view of the live state with len(columns) rows; each of three labels or more has a column."""
        return self._state[: len(self.columns), 0]

    @property
    def average(self) -> NDArray[np.float64] | None:
        """The average of the weights after each event, if the identity keeps one: see `kernel.kernel`."""
        return self._average_at(slice(len(self.columns))) if self.identity.average else None

    @property
    def averaged(self) -> bool:
        """Whether the average answers."""
        return self.observations.averaged

    def confusion(self, averaged: bool) -> Confusion:
        """All events by label, and how many the weights or their average predicted rightly; zeros if not known."""
        counts, recent = self.counts, self.observations.recent
        if not averaged:
            return Confusion(counts.by_label, counts.right)
        if recent.missed is None or recent.averaged.events != counts.events:
            return Confusion([0] * len(counts.by_label), [0] * len(counts.by_label))
        return Confusion(counts.by_label, [n - wrong for n, wrong in zip(counts.by_label, recent.missed, strict=True)])

    @property
    def answers(self) -> Confusion:
        """As `confusion`, for the weights that answer. With `serve = "best"`, each event counts as it was answered."""
        options, recent = self.observations.options, self.observations.recent
        return Confusion(*recent.served.tolist()) if options.serve == BEST else self.confusion(self.averaged)

    @property
    def served(self) -> NDArray[np.float64]:
        """A copy of the weights that answer."""
        return self.served_at(slice(len(self.columns)))

    def served_at(self, columns: NDArray[np.intp] | slice, label: int | None = None) -> NDArray[np.float64]:
        """A copy of these columns' weights that answer; with three labels or more, `label` may choose one."""
        at: Any = columns if label is None else (columns, label)
        return self._average_at(at) if self.averaged else np.array(self._state[:, 0][at])

    def _average_at(self, at: Any) -> NDArray[np.float64]:
        away: NDArray[np.float64] = self._state[:, 1][at] * self._part
        w: NDArray[np.float64] = self._state[:, 0][at]
        return np.subtract(w, away, out=away)  # in place: with a million columns, memory takes most of the time

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The arrays to store, by name, as views of the live state: see `Identity.weight_arrays`."""
        rows = self._state[: len(self.columns)].reshape(len(self.columns), -1).T
        return dict(zip(self.identity.weight_arrays, rows, strict=True))

    @property
    def squared_norm(self) -> float:
        """‖w‖², the bias included."""
        return squared_norm(self.weights)

    def restore(self, state: NDArray[np.float64], norm: float, counts: Counts, diverged: str | None = None) -> None:
        """Take over restored state without copying it; `norm` is ‖w‖², which takes long to sum for a large model.

        Call it after the columns have their names and the observations are restored.
        """
        self._state, self.counts = state, counts
        self.make_room(len(self.columns))
        self.diverged = diverged
        self._reach, self._part = math.sqrt(norm + self._state.size), accumulator_factor(self.identity, counts.events)
        if norm > MAX_SQUARED_NORM * (1.0 + ROUNDING):  # a release without a limit saved it
            self.diverged = f"the squared norm of the weights is {norm:g}, beyond {MAX_SQUARED_NORM:g}"
        if self.observations.bound_segment is None:
            self.observations.use_reference_of_settings(self.weights, counts.updates, self.columns.names)

    def amended(self, identity: Identity) -> "Classifier":
        """A classifier that continues this one, which is not used any more, under another identity.

        Its average of the weights is the same. A new segment of the bound begins, since the theorem is about one rate.
        """
        new, before = Classifier(identity, self.columns, self.observations.options), self.observations
        new.observations.restore(before.recent, before.squared_steps, None)
        new.observations.averaged = before.averaged
        if identity.average:
            ages = [accumulator_factor(each, self.counts.events) for each in (self.identity, identity)]
            self._state[:, 1] *= ages[0] / ages[1]
        new.restore(self._state, self.squared_norm, self.counts)
        return new

    def begin_segment(self) -> bool:
        """Begin a segment of the bound whose reference is the average of the weights, or w if there is no average.

        Does nothing and returns False if the settings name a reference.
        """
        if self.observations.options.reference is not None:
            return False
        vector = self.weights if (average := self.average) is None else average
        self.observations.begin_segment(vector, "kept version", vector, self.weights, self.counts.updates)
        return True

    def begin(self, start: NDArray[np.float64] | None = None) -> None:
        """Begin with these first weights of all columns in use, or with those of the identity."""
        if start is not None:
            self._state = state_of(self.identity, {"w": start, "late": np.zeros(len(start))})
        self.make_room(len(self.columns))
        self.observations.grow(self.weights, 0)
        self.observations.use_reference_of_settings(self.weights, 0, self.columns.names)

    def make_room(self, count: int) -> int:
        """Give the state at least this many columns, and return how many it has.

        Spare columns hold the first weights of new ones.
        """
        have = len(self._state)
        if have < count:
            state = np.zeros((max(count, 2 * have), *self._state.shape[1:]))
            if not have:
                state.fill(0.0)  # the system gives the memory now, in the thread that makes a large model
                self._reach = math.sqrt(state.size)  # a weight begins within ±1
            state[:have] = self._state
            if self.identity.start != "zero":  # else it is zero already, and the system gives no memory yet
                state[have:, 0] = initial_weights(self.identity, have, len(state) - have)
            self._state = state
        return len(self._state)

    def learn(self, batch: Batch, place: Place) -> tuple[Batch, Learned]:
        """Learn a batch, up to an event that would take the weights beyond their limit; call `count` next.

        Returns the events that were learned, and their figures.
        """
        reference = self.observations.bound_segment.reference if self.observations.bound_segment else None
        learned = kernel.learn(self.identity, self._state, batch, self.counts.events, self._reach, reference)
        self._reach = learned.reach
        if (count := len(learned.scores)) < len(batch.labels):
            self.stop(*place(batch.records[count]))
            batch = batch.first(count)
        return batch, learned

    def stop(self, partition: PartitionId, offset: int) -> None:
        """Learn no more, since the update at this offset would take the weights beyond their limit."""
        self.diverged_at = partition, offset
        self.diverged = (
            f"rule {self.identity.rule} with eta {self.identity.eta:g}: the update at offset {offset} of partition "
            f"{partition} takes the squared norm of the weights beyond {MAX_SQUARED_NORM:g}"
        )

    def count(self, batch: Batch, learned: Learned, columns_before: int) -> None:
        """Count the events that were learned; `columns_before` is the number of columns before them."""
        if (new := len(self.columns) - columns_before) > 0:
            self.observations.grow(initial_weights(self.identity, columns_before, new), columns_before)
        counts = self.counts
        margins = learned.scores if self.identity.multiclass else batch.labels * learned.scores
        counts.mistakes += int(np.count_nonzero(margins <= 0.0))
        counts.updates += int(np.count_nonzero(learned.steps))
        counts.add(learned.truth, learned.predicted)
        self.observations.follow(batch, learned, margins)
        self._part = accumulator_factor(self.identity, counts.events)

    def score_of(self, pairs: ColumnPairs) -> Scores:
        """s = w·x of the weights that answer, for columns and scaled values; a score for each of three labels or more.

        A plain loop in the kernel's order: to call compiled code for one event costs more, and `sum` has other bits.
        """
        averaged, part = self.averaged, self._part
        if self.identity.multiclass:
            state = self._state
            scores: NDArray[np.float64] = state[0, 0] - state[0, 1] * part if averaged else state[0, 0].copy()
            for column, value in pairs:
                own = state[column]
                scores += (own[0] - own[1] * part if averaged else own[0]) * value
            return scores
        w = memoryview(self._state[:, 0])  # type: ignore[arg-type]
        s: float = w[0]
        if not averaged:
            for column, value in pairs:
                s += w[column] * value
            return s
        average_accumulator = memoryview(self._state[:, 1])  # type: ignore[arg-type]
        s -= average_accumulator[0] * part
        for column, value in pairs:
            s += (w[column] - average_accumulator[column] * part) * value
        return s

    def label(self, score: Scores) -> Label:
        """The label that a score is answered with: positive if s > 0, and if s = 0 and the tie is positive.

        With `positive_above` it is positive if s is larger than that.
        With three labels or more it is the label of the largest score, the first of equals.
        """
        label_index = int(np.argmax(score)) if self.identity.multiclass else self.decide(score)
        return (self.identity.labels or (-1, 1))[label_index]


def largest(weights: NDArray[np.float64], count: int) -> list[int]:
    """The columns of the `count` largest weights by size, without the bias; equal ones in the order of the columns."""
    sizes = np.abs(weights[1:])
    # To partition many zeros takes seconds, so they are left out, and follow the others.
    nonzero, zeros = np.flatnonzero(sizes), np.flatnonzero(sizes == 0.0)[:count]
    if count < len(nonzero):
        nonzero = nonzero[sizes[nonzero] >= np.partition(sizes[nonzero], -count)[-count]]
    nonzero = nonzero[np.argsort(-sizes[nonzero], kind="stable")]
    largest_columns: list[int] = (np.concatenate([nonzero, zeros])[:count] + 1).tolist()
    return largest_columns


@compiled
def majority_baseline(before: NDArray[np.int64], truth: NDArray[np.intp]) -> NDArray[np.intp]:
    """The most frequent label of all events before each event, the first of equals. It adds the events to `before`."""
    predicted, most = np.empty_like(truth), np.argmax(before)
    for i in range(len(truth)):
        predicted[i], own = most, truth[i]
        before[own] += 1
        if before[own] > before[most] or (before[own] == before[most] and own < most):
            most = own
    return predicted


def stored_as(name: str, array: str) -> str:
    """The name of a candidate's array in a snapshot, different from the names of the model's own arrays."""
    return f"{name}/{array}"


class Candidate(Classifier):
    """A classifier with another rule or average, learned next to a model from the same decoded and scaled batches.

    It shares the model's columns, so it costs only its updates. The model's own weights never depend on it. Its
    identity, the offsets where it began (`since`, by partition) and the offset where it diverged are state.
    """

    def __init__(self, identity: Identity, columns: Columns, options: Options, since: dict[PartitionId, int]) -> None:
        super().__init__(identity, columns, options)
        self.since = dict(since)

    def follow(self, batch: Batch, columns_before: int, place: Place) -> NDArray[np.bool_]:
        """Learn the batch that the model learned; returns which events it predicted rightly.

        `columns_before` is the number of columns before the batch.
        There are fewer events if the candidate has diverged, in this batch or before; after that no weight changes.
        """
        if self.diverged and len(batch.labels):
            batch = batch.first(0)
        batch, learned = self.learn(batch, place)
        self.count(batch, learned, columns_before)
        right: NDArray[np.bool_] = (learned.averaged if self.averaged else learned.predicted) == learned.truth
        return right
