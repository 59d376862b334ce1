"""The observations of a model: how recent events were predicted, how far it moved, what the theorem allows.

They are not state: learning does not need them. A snapshot keeps them next to the state.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from service.learning.columns.columns import Batch
from service.learning.evaluation.mistake_bound import BoundSegment, SegmentSums, inverse_norm, no_bound_reason
from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.identity import Identity
from service.learning.jit.jit import compiled
from service.learning.kernel.kernel import Learned, Vector
from service.learning.options import Options
from service.learning.rules import RULES


class OffsetGaps(msgspec.Struct):
    """Gaps between the batches of a partition: how many, and the first and the last, as offset and the one after."""

    count: int
    first: tuple[int, int]
    last: tuple[int, int]


class ModelObservations:
    """The observations of one classifier, which reports new columns and learned batches."""

    def __init__(self, identity: Identity, options: Options) -> None:
        self.options = options
        self.recent = PrequentialWindow(options.window, identity.classes)
        self.gaps: dict[str, OffsetGaps] = {}
        """By partition."""
        self.stretch: BoundSegment | None = None
        self.squared_steps = 0.0
        """‖w(0)‖² + Σ(‖Δw‖² + 2·η·weight·margin) over the updates."""
        self._identity = identity
        given = options.reference
        self._given = dict(zip(given.names, given.coef, strict=True)) if given and given.names else {}

    @property
    def squared_norm_limit(self) -> float | None:
        """The limit of ‖w‖²: that of the start, and what updates can add. Only for rules that the theorem is about."""
        return self.squared_steps if RULES[self._identity.rule].mistake_driven else None

    @property
    def bound(self) -> tuple[int | None, str | None]:
        """The most updates that the theorem allows, or None and the reason why there is no bound."""
        if reason := no_bound_reason(self._identity, self.options.bound):
            return None, reason
        return (self.stretch.bound, None) if self.stretch else (None, "no reference is known yet")

    @property
    def needs_reference(self) -> bool:
        """Whether a reference is possible but missing: the weights may have been zero so far."""
        return self.stretch is None and no_bound_reason(self._identity, self.options.bound) is None

    def failed_check(self, squared_norm: float) -> str | None:
        """The check that a state with this ‖w‖² fails, so that it must be corrupt; None if it fails none."""
        return self.stretch.failed_check(squared_norm) if self.stretch else None

    def restored(
        self, recent: PrequentialWindow, squared_steps: float, stretch: BoundSegment | None, w: Vector, updates: int,
        names: Sequence[str],
    ) -> None:  # fmt: skip
        """Take over the observations in a snapshot of a model with the weights `w` after this many `updates`."""
        self.recent, self.squared_steps = recent, squared_steps
        given = self.options.reference
        if given is None or (stretch and stretch.sums.reference == given.identity):
            self.stretch = stretch if self.options.bound else None
        else:
            self.use_given_reference(w, updates, names)

    def add_gap(self, partition: int, gap: tuple[int, int]) -> None:
        """Count a gap in the log, from one offset to another, that its reader accepted."""
        known = self.gaps.get(str(partition))
        count, first = (known.count + 1, known.first) if known else (1, gap)
        self.gaps[str(partition)] = OffsetGaps(count, first, gap)

    def begin_segment(self, vector: Vector, w: Vector, updates: int) -> bool:
        """Begin a new stretch of the bound with this vector, the weights or their average, as the reference.

        Does nothing and returns False if the settings give a reference.
        """
        if self.options.reference is not None:
            return False
        self._begin_segment(vector, "kept version", vector, w, updates)
        return True

    def use_given_reference(self, w: Vector, updates: int, names: Sequence[str]) -> None:
        """Begin a new stretch with the reference that the settings give, if any."""
        if (given := self.options.reference) is not None:
            own = given.vector if given.names is None else np.array([given.intercept, *self._parts(names)])
            self._begin_segment(own[: len(w)], given.identity, given.vector, w, updates)

    def make_room(self, count: int, names: Sequence[str]) -> None:
        """Give the reference parts for this many columns, of which the last are new and have these names."""
        if self.stretch is not None:
            self.stretch.make_room(count)
            if self._given and names:
                self.stretch.reference[count - len(names) : count] = self._parts(names)

    def grow(self, started: Vector, first: int) -> None:
        """Take in new columns from `first` on: their first weights are part of w(0), whenever they come."""
        self.squared_steps += float(np.dot(started.ravel(), started.ravel()))
        if self.stretch is not None:
            self.stretch.grow(started, first)

    def follow(self, batch: Batch, learned: Learned, margins: Vector) -> None:
        """Take in events that were learned. `margins` are y·s, or of classes the own score less the largest other."""
        identity, truth = self._identity, learned.truth
        # Of classes a mistake moves two of them; LMS and logistic-delta say how far they moved all together.
        moved = 2.0 if identity.multiclass and RULES[identity.rule].mistake_driven else 1.0
        limits = moved, *identity.margins
        self.squared_steps = float(_lengthened(self.squared_steps, *limits, batch.starts, batch.values, learned.steps))
        if self.stretch is not None:
            self.stretch.follow(identity, batch, learned)
        wrong, averaged = learned.predicted != truth, learned.averaged != truth[: len(learned.averaged)]
        self.recent.add(truth, margins, learned.squared_norms, wrong, averaged)

    def _begin_segment(self, vector: Vector, name: str, whole: Vector, w: Vector, updates: int) -> None:
        """`vector` is the part of the `whole` one that there are columns for."""
        reference, scale = vector.astype(np.float32), inverse_norm(whole.astype(np.float32))
        if no_bound_reason(self._identity, self.options.bound) is None and scale > 0.0:
            with np.errstate(over="ignore"):  # an older release let them grow without a limit
                squared = float(np.dot(w.ravel(), w.ravel()))
            along = scale * float(np.dot(w.ravel(), reference.ravel()))
            self.stretch = BoundSegment(reference, SegmentSums(name, scale, updates, squared, along))

    def _parts(self, names: Sequence[str]) -> list[float]:
        """The parts of a given reference for columns of these names."""
        return [self._given.get(name, 0.0) for name in names]


@compiled
def _lengthened(
    total: float, moved: float, negative: float, positive: float, starts: Any, values: Vector, steps: Vector
) -> float:
    """A sum of what updates can add to ‖w‖² with that of these, in their order: a step's sign is its label's.

    `moved` is how many vectors of weights a step moves.
    """
    for i in range(len(steps)):
        if steps[i] != 0.0:
            total += moved * steps[i] * steps[i] + 2.0 * abs(steps[i]) * (positive if steps[i] > 0.0 else negative)
            for j in range(starts[i], starts[i + 1]):
                delta = steps[i] * values[j]
                total += moved * delta * delta
    return total
