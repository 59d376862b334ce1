"""What an identity makes of decoded batches: weights over columns, counts, and what is watched. Knows no records.

A model is one, which also reads the log: `learner.Learner`.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.learning import kernel
from service.learning.average import part
from service.learning.bounds import ROUNDING, Stretch
from service.learning.columns import Columns, Pairs
from service.learning.events import Batch
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.kernel import Learned
from service.learning.options import Options
from service.learning.recent import Recent
from service.learning.rules import RULES
from service.learning.start import initial
from service.learning.watch import Watch

_NOBODY: Mapping[str, NDArray[np.bool_]] = MappingProxyType({})


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


def diverges(identity: Identity, partition: int, offset: int) -> str:
    """What is said of weights that the event at this offset would take beyond their limit."""
    return (
        f"rule {identity.rule} with eta {identity.eta:g}: the update at offset {offset} of partition {partition} takes "
        f"the squared norm of the weights beyond {MAX_SQUARED_NORM:g}"
    )


class Classifier:
    """Weights of one rule. Its columns may be others' too; who owns them says when there are more."""

    def __init__(self, identity: Identity, columns: Columns, options: Options) -> None:
        self.identity, self.columns = identity, columns
        self.counts = Counts()
        self.watch = Watch(identity, options)
        self.diverged: str | None = None
        """Why nothing more is learned, and these weights are not to answer: the next event's update, or ‖w‖² itself."""
        of, slope = RULES[identity.rule].probability, identity.parameter
        self.probability = (lambda s: of(s, slope)) if of else None
        """What a score says of the positive label, where the rule models that."""
        self._reach = math.inf
        self._part = 1.0
        """What `late` is multiplied by, where it is taken off the weights."""
        self._w = self._late = np.zeros(0)

    @property
    def weights(self) -> NDArray[np.float64]:
        """w, bias first; a view of the live array, of length len(columns)."""
        return self._w[: len(self.columns)]

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
        late = {"late": self._late[: len(self.columns)]} if self.identity.average else {}
        return {"w": self.weights, **late}

    @property
    def squared_norm(self) -> float:
        """‖w‖², the bias included."""
        with np.errstate(over="ignore"):  # an older release let them grow without a limit
            return float(self.weights @ self.weights)

    def restore(
        self,
        arrays: Mapping[str, NDArray[np.float64]],
        counts: Counts,
        squared_steps: float,
        recent: Recent,
        stretch: Stretch | None,
        diverged: str | None = None,
    ) -> None:
        """Take over restored state, these very objects; the columns have their names already."""
        self._w, self._late = arrays["w"], arrays.get("late", self._late)
        self.counts = counts
        self.make_room(len(self.columns))
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

    def make_room(self, count: int) -> None:
        """Let the arrays have so many columns, and more: those that are not in use have what a new one begins with."""
        have = len(self._w)
        if have < count:
            self._w = np.concatenate([self._w, initial(self.identity.start, have, max(count - have, have))])
        if self.identity.average and len(self._late) < len(self._w):
            self._late = np.concatenate([self._late, np.zeros(len(self._w) - len(self._late))])

    def learn(self, batch: Batch) -> Learned:
        """Change the weights by a batch, up to the event that would take them beyond their limit; `count` follows."""
        learned = kernel.learn(self.identity, self._w, self._late, batch, self.counts.events, self._reach)
        self._reach = learned.reach
        return learned

    def count(
        self, batch: Batch, learned: Learned, known: int, others: Mapping[str, NDArray[np.bool_]] = _NOBODY
    ) -> NDArray[np.bool_]:
        """Count the events that were learned; `known` is how many columns there were before them.

        `others` are those that predicted the same events, and were they right? So says it of the weights that answer.
        """
        if len(self.columns) > known:
            self.watch.grow(initial(self.identity.start, known, len(self.columns) - known), known, self.columns.names)
        counts, scores, truth = self.counts, learned.scores, batch.labels > 0.0
        predicted = self.identity.decide(scores)
        counts.mistakes += int(np.count_nonzero(batch.labels * scores <= 0.0))
        counts.updates += int(np.count_nonzero(learned.steps))
        # The more frequent label of all events before this one; of equals the negative.
        negative, positive = map(sum, counts.confusion)
        usual = 2 * (positive + np.cumsum(truth) - truth) > negative + positive + np.arange(len(truth))
        table = np.bincount(2 * truth + predicted, minlength=4).tolist()
        for row, new in zip(counts.confusion, (table[:2], table[2:]), strict=True):
            row[0] += new[0]
            row[1] += new[1]
        wrong = predicted != truth
        averaged = self.identity.decide(learned.averages) != truth if self.identity.average else truth[:0]
        self.watch.follow(batch, learned, wrong, averaged, usual != truth, others)
        self._part = part(self.identity, counts.events)
        return ~(averaged if self.averaged else wrong)

    def score_of(self, pairs: Pairs) -> float:
        """s = w·x of the weights that are served, for columns and values as these meet them.

        A plain loop in the kernel's order: calling compiled code for one costs more, and `sum` has other bits.
        """
        w = memoryview(self._w)  # type: ignore[arg-type]
        s: float = w[0]
        if not self.averaged:
            for column, value in pairs:
                s += w[column] * value
            return s
        late, own = memoryview(self._late), self._part  # type: ignore[arg-type]
        s -= late[0] * own
        for column, value in pairs:
            s += (w[column] - late[column] * own) * value
        return s

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
