"""A classifier: weights over columns, learned from decoded batches by one rule, with counts and observations.

It knows nothing of records. `learner.Learner` is a classifier that also reads the log.
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
from service.learning.evaluation.mistake_bound import ROUNDING, BoundSegment
from service.learning.evaluation.observations import ModelObservations
from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.identity import MAX_SQUARED_NORM, Identity, Label
from service.learning.initial_weights import initial_weights
from service.learning.jit.jit import compiled
from service.learning.kernel import kernel
from service.learning.kernel.averaging import accumulator_factor
from service.learning.kernel.kernel import Learned
from service.learning.options import Options
from service.learning.rules import RULES

MAX_SCANNED_LABELS = 30
"""With more labels, looking at each cell of the confusion takes longer than sorting the events."""
Scores = float | NDArray[np.float64]
"""The score w·x of one event; with three labels and more, one for each label in their order."""


class Counts(msgspec.Struct, forbid_unknown_fields=True, dict=True):
    """The counts of a model since its first event. `confusion[truth][prediction]` is by the places of the labels.

    A thousand labels make a million cells, so sums over them are kept as well: only `add` changes the confusion.
    """

    confusion: list[list[int]] = msgspec.field(default_factory=lambda: [[0, 0], [0, 0]])
    mistakes: int = 0
    updates: int = 0
    ignored_features: int = 0
    skipped: int = 0
    """Records that `where` passed over."""
    rejected: dict[str, int] = {}

    @cached_property
    def by_label(self) -> list[int]:
        """Events of each label."""
        return [sum(row) for row in self.confusion]

    @cached_property
    def events(self) -> int:
        """Events learned."""
        return sum(self.by_label)

    def add(self, truth: NDArray[np.intp], predicted: NDArray[np.intp]) -> None:
        """Count events by the places of their labels and of the predicted labels."""
        classes = len(self.confusion)
        self.events += len(truth)
        cells = truth * classes + predicted
        if classes > MAX_SCANNED_LABELS:
            places, found = np.unique(cells, return_counts=True)
        else:
            found = np.bincount(cells)
            places = np.flatnonzero(found)
            found = found[places]
        for cell, n in zip(places.tolist(), found.tolist(), strict=True):
            self.confusion[cell // classes][cell % classes] += n
            self.by_label[cell // classes] += n

    def copy(self) -> "Counts":
        """A copy that changes independently."""
        other = replace(self, confusion=[row[:] for row in self.confusion], rejected=dict(self.rejected))
        other.by_label, other.events = self.by_label[:], self.events
        return other

    @property
    def right(self) -> list[int]:
        """The events of each label that were predicted rightly."""
        return [row[i] for i, row in enumerate(self.confusion)]

    @property
    def records(self) -> int:
        """Records that were read: learned, set aside or passed over."""
        return self.events + sum(self.rejected.values()) + self.skipped

    @property
    def wrong_predictions(self) -> int:
        """Events whose predicted label, before learning, differed from the true one."""
        return self.events - sum(self.right)


def divergence_reason(identity: Identity, partition: int, offset: int) -> str:
    """The message for an event whose update would take the weights beyond their limit."""
    return (
        f"rule {identity.rule} with eta {identity.eta:g}: the update at offset {offset} of partition {partition} takes "
        f"the squared norm of the weights beyond {MAX_SQUARED_NORM:g}"
    )


def state_of(identity: Identity, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """The state as the kernel has it, from arrays as they are stored: see `Classifier.arrays`."""
    names, classes = ["w", "late"] if identity.average else ["w"], range(identity.classes)
    if identity.multiclass:
        arrays = {name: np.stack([arrays[f"{name}/{k}"] for k in classes], axis=1) for name in names}
    return np.stack([arrays[name] for name in names], axis=1)


class Classifier:
    """Weights of one rule. Other classifiers may share its columns; their owner calls `make_room` for new ones."""

    def __init__(self, identity: Identity, columns: Columns, options: Options) -> None:
        self.identity, self.columns = identity, columns
        self.counts = Counts([[0] * identity.classes for _ in range(identity.classes)])
        self.observations = ModelObservations(identity, options)
        self.diverged: str | None = None
        """Why nothing more is learned, and these weights are not to answer: the next event's update, or ‖w‖² itself."""
        of, slope = RULES[identity.rule].probability, identity.parameter
        self.probability = (lambda s: of(s, slope)) if of and not identity.multiclass else None
        """The probability of the positive label by the score, if the rule models it."""
        self._reach = math.inf
        self._part = 1.0
        """The factor of `late` in the average, w - late·part."""
        self._state = np.zeros((0, 1 + bool(identity.average), *([identity.classes] if identity.multiclass else [])))
        """The state as `kernel.learn` has it, with spare columns for later events."""

    @property
    def _w(self) -> NDArray[np.float64]:
        return self._state[:, 0]

    @property
    def weights(self) -> NDArray[np.float64]:
        """w, bias first: a view of the live state with len(columns) rows, and with classes a column for each."""
        return self._w[: len(self.columns)]

    @property
    def average(self) -> NDArray[np.float64] | None:
        """The average of the weights after each event so far, if the identity keeps one: see the module `averaging`."""
        return self._average_at(slice(len(self.columns))) if self.identity.average else None

    @property
    def averaged(self) -> bool:
        """Whether the average answers."""
        return bool(self.identity.average) and self.observations.options.serve == "average"

    @property
    def served(self) -> NDArray[np.float64]:
        """The weights that answer."""
        return self.served_at(slice(len(self.columns)))

    def served_at(self, columns: NDArray[np.intp] | slice, label: int | None = None) -> NDArray[np.float64]:
        """The weights of these columns that answer, with classes those of one label if it is given; perhaps a view."""
        at: Any = columns if label is None else (columns, label)
        w: NDArray[np.float64] = self._average_at(at) if self.averaged else self._w[at]
        return w

    def _average_at(self, at: Any) -> NDArray[np.float64]:
        away: NDArray[np.float64] = self._state[:, 1][at] * self._part
        w: NDArray[np.float64] = self._w[at]
        return np.subtract(w, away, out=away)  # in place: of a million columns memory is what takes the time

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The arrays to store, by name: w, and `late` if the average is kept (see the kernel)."""
        own = {"w": self.weights} | ({"late": self._state[: len(self.columns), 1]} if self.identity.average else {})
        if not self.identity.multiclass:
            return own
        return {
            f"{name}/{k}": row for name, array in own.items() for k, row in enumerate(np.ascontiguousarray(array.T))
        }

    @property
    def squared_norm(self) -> float:
        """‖w‖², the bias included."""
        with np.errstate(over="ignore"):  # an older release let them grow without a limit
            flat = self.weights if self._state.ndim == 2 else self.weights.ravel()
            return float(np.dot(flat, flat))  # unlike `@` it lets other threads run

    def restore(
        self,
        state: NDArray[np.float64],
        counts: Counts,
        squared_steps: float,
        recent: PrequentialWindow,
        stretch: BoundSegment | None,
        diverged: str | None = None,
    ) -> None:
        """Take over restored state without copying it; the columns have their names already."""
        self._state, self.counts = state, counts
        self.make_room(len(self.columns))
        self.diverged, norm = diverged, self.squared_norm
        self._reach, self._part = math.sqrt(norm + self._state.size), accumulator_factor(self.identity, counts.events)
        if norm > MAX_SQUARED_NORM * (1.0 + ROUNDING):  # saved by a release that had no limit
            self.diverged = f"the squared norm of the weights is {norm:g}, beyond {MAX_SQUARED_NORM:g}"
        self.observations.restored(recent, squared_steps, stretch, self.weights, counts.updates, self.columns.names)

    def begin_segment(self) -> bool:
        """Begin a new stretch of the bound with the weights, or their average if it is kept, as the reference.

        Does nothing and returns False if the settings give a reference.
        """
        vector = self.weights if self.average is None else self.average
        return self.observations.begin_segment(vector, self.weights, self.counts.updates)

    def make_room(self, count: int) -> None:
        """Give the arrays at least this many columns; spare ones hold the first weights of new columns."""
        have = len(self._state)
        if have < count:
            state = np.zeros((max(count, 2 * have), *self._state.shape[1:]))
            if not have:
                state.fill(0.0)  # the system gives the memory of a large model now, in the thread that makes it
                self._reach = math.sqrt(state.size)  # a weight begins within ±1
            state[:have] = self._state
            if self.identity.start != "zero":  # else the memory is zero already, and is not touched
                state[have:, 0] = initial_weights(self.identity, have, len(state) - have)
            self._state = state

    def learn(self, batch: Batch) -> Learned:
        """Change the weights by a batch, up to an event that would take them beyond their limit; call `count` next."""
        reference = self.observations.stretch.reference if self.observations.stretch else None
        about = self.counts.events, self._reach, reference
        learned = kernel.learn(self.identity, self._state, batch, *about)
        self._reach = learned.reach
        return learned

    def count(self, batch: Batch, learned: Learned, known: int) -> None:
        """Count the events that were learned; `known` is how many columns there were before them."""
        if len(self.columns) > known:
            self.observations.grow(initial_weights(self.identity, known, len(self.columns) - known), known)
        counts, truth, predicted = self.counts, learned.truth, learned.predicted
        margins = learned.scores if self.identity.multiclass else batch.labels * learned.scores
        counts.mistakes += int(np.count_nonzero(margins <= 0.0))
        counts.updates += int(np.count_nonzero(learned.steps))
        counts.add(truth, predicted)
        self.observations.follow(batch, learned, margins)
        self._part = accumulator_factor(self.identity, counts.events)

    def score_of(self, pairs: ColumnPairs) -> Scores:
        """s = w·x of the weights that answer, for columns and scaled values; with classes one score for each.

        A plain loop in the kernel's order: calling compiled code for one event costs more, and `sum` has other bits.
        """
        averaged, part = self.averaged, self._part
        if self.identity.multiclass:
            state = self._state
            scores: NDArray[np.float64] = state[0, 0] - state[0, 1] * part if averaged else state[0, 0].copy()
            for column, value in pairs:
                of = state[column]
                scores += (of[0] - of[1] * part if averaged else of[0]) * value
            return scores
        w = memoryview(self._w)  # type: ignore[arg-type]
        s: float = w[0]
        if not averaged:
            for column, value in pairs:
                s += w[column] * value
            return s
        late = memoryview(self._state[:, 1])  # type: ignore[arg-type]
        s -= late[0] * part
        for column, value in pairs:
            s += (w[column] - late[column] * part) * value
        return s

    def label(self, score: Scores) -> Label:
        """The label that a score predicts: positive when s > 0, and when s = 0 if the tie is positive.

        With classes it is the label of the largest score, the first of equals.
        """
        place = int(np.argmax(score)) if self.identity.multiclass else self.identity.decide(score)
        return (self.identity.labels or (-1, 1))[place]


def largest(weights: NDArray[np.float64], count: int) -> list[int]:
    """The columns of the largest weights by size, largest first, without the bias; of equals the first."""
    sizes = np.abs(weights[1:])
    least = np.partition(sizes, -count)[-count] if count < len(sizes) else 0.0
    above, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
    chosen = np.concatenate([above, equal[: count - len(above)]])
    order = np.lexsort((chosen, -sizes[chosen]))[:count]
    return [int(i) + 1 for i in chosen[order]]


@compiled
def majority_baseline(before: NDArray[np.int64], truth: NDArray[np.intp]) -> NDArray[np.intp]:
    """The most frequent label of all events before each one, the first of equals; it changes `before`."""
    usual, most = np.empty_like(truth), np.argmax(before)
    for i in range(len(truth)):
        usual[i], own = most, truth[i]
        before[own] += 1
        if before[own] > before[most] or (before[own] == before[most] and own < most):
            most = own
    return usual
