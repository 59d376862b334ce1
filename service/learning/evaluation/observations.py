"""The observations of a model: how recent events were predicted, how far it moved, what the theorem allows.

They are no part of the state, since learning does not need them. A snapshot has them next to the state.
"""

import math
from collections.abc import Sequence

import numpy as np

from service.learning.columns.columns import Batch
from service.learning.evaluation.confusion import Confusion
from service.learning.evaluation.mistake_bound import MIN_GAMMA, BoundSegment, SegmentSums, no_bound_reason
from service.learning.evaluation.prequential import PrequentialWindow, Ranking
from service.learning.identity import Identity
from service.learning.jit import compiled
from service.learning.kernel.kernel import Learned, Vector, squared_norm
from service.learning.options import BEST, Options
from service.learning.rules import RULES


class ModelObservations:
    """The observations of one classifier, which reports new columns and learned batches here."""

    def __init__(self, identity: Identity, options: Options) -> None:
        self.options = options
        self.recent = PrequentialWindow(options.window, identity.classes)
        self.bound_segment: BoundSegment | None = None
        self.squared_steps = 0.0
        """‖w(0)‖² + Σ(‖Δw‖² + 2·η·weight·margin) over the updates."""
        self.averaged = bool(identity.average) and options.serve in ("average", BEST)
        """Whether the average of the weights answers, or would if no candidate did."""
        self._identity, file = identity, options.reference
        self._parts_by_name = dict(zip(file.names, file.coef, strict=True)) if file and file.names else {}

    @property
    def squared_norm_limit(self) -> float | None:
        """The limit of ‖w‖²: ‖w(0)‖² and what the updates can add; None for rules that the theorem is not about."""
        return self.squared_steps if RULES[self._identity.rule].mistake_driven else None

    @property
    def bound(self) -> tuple[int | None, str | None]:
        """The most updates that the theorem allows, or None; and the reason why there is no bound, or None."""
        if reason := no_bound_reason(self._identity, self.options.bound):
            return None, reason
        return (self.bound_segment.bound, None) if self.bound_segment else (None, "no reference is known yet")

    @property
    def needs_reference(self) -> bool:
        """Whether there can be a reference but is none, as while the weights are zero."""
        return self.bound_segment is None and no_bound_reason(self._identity, self.options.bound) is None

    @property
    def recent_answers(self) -> Confusion:
        """Labels and answers in the recent window, by the weights that answer and by `positive_above`."""
        return self.recent.confusion(self.averaged, self.options.positive_above is not None, self.options.serve == BEST)

    @property
    def ranking(self) -> Ranking:
        """How well the recent scores by the weights that answer rank events."""
        identity, best = self._identity, self.options.serve == BEST  # predictors of several rules have no log loss
        slope = identity.parameter if RULES[identity.rule].probability and not best else None
        return self.recent.ranking(self.averaged, slope, served=best)

    def failed_check(self, squared_norm: float) -> str | None:
        """The check that a state with this ‖w‖² fails, so that the state must be corrupt; None if it fails none."""
        return self.bound_segment.failed_check(squared_norm) if self.bound_segment else None

    def restore(self, recent: PrequentialWindow, squared_steps: float, bound_segment: BoundSegment | None) -> None:
        """Take over the observations of a snapshot; drop a segment without a bound or of another reference."""
        self.recent, self.squared_steps, file = recent, squared_steps, self.options.reference
        from_settings = file is None or (bound_segment is not None and bound_segment.sums.reference == file.identity)
        self.bound_segment = bound_segment if self.options.bound and from_settings else None

    def begin_segment(self, vector: Vector, name: str, whole: Vector, w: Vector, updates: int) -> None:
        """Begin a segment of the bound with a reference of this name, unless the model has no bound.

        `vector` has the parts of the `whole` reference for which there are columns.
        """
        reference, squared = vector.astype(np.float32), squared_norm(whole.astype(np.float32).astype(np.float64))
        if no_bound_reason(self._identity, self.options.bound) is None and MIN_GAMMA**2 < squared < math.inf:
            scale = 1.0 / math.sqrt(squared)
            along = scale * float(np.dot(w.ravel(), reference.ravel()))
            self.bound_segment = BoundSegment(reference, SegmentSums(name, scale, updates, squared_norm(w), along))

    def use_reference_of_settings(self, w: Vector, updates: int, names: Sequence[str]) -> None:
        """Begin a segment with the reference of the settings, if they name one."""
        if (file := self.options.reference) is not None:
            own = file.vector if file.names is None else np.array([file.intercept, *self._parts(names)])
            self.begin_segment(own[: len(w)], file.identity, file.vector, w, updates)

    def make_room(self, count: int, names: Sequence[str]) -> None:
        """Give the reference parts for this many columns, of which the last are new and have these names."""
        if self.bound_segment is not None:
            self.bound_segment.make_room(count)
            if self._parts_by_name and names:
                self.bound_segment.reference[count - len(names) : count] = self._parts(names)

    def grow(self, started: Vector, first: int) -> None:
        """Add new columns from `first` on. Their first weights are part of w(0), whenever they come."""
        self.squared_steps += squared_norm(started)
        if self.bound_segment is not None:
            self.bound_segment.grow(started, first)

    def follow(self, batch: Batch, learned: Learned, margins: Vector) -> None:
        """Add events that were learned. `margins` are y·s, or with three labels or more as in `Learned.scores`."""
        identity = self._identity
        # With three labels or more a mistake moves two classes; another rule's step already covers all classes.
        moved = 2.0 if identity.multiclass and RULES[identity.rule].mistake_driven else 1.0
        total = _limit(self.squared_steps, moved, *identity.margins, learned.steps, learned.squared_norms)
        self.squared_steps = float(total)
        if self.bound_segment is not None:
            self.bound_segment.follow(identity, batch, learned)
        averaged_scores = learned.averaged_scores
        averaged_products = batch.labels * averaged_scores if len(averaged_scores) else averaged_scores
        self.recent.add(learned, margins, averaged_products)
        if (above := self.options.positive_above) is not None:
            scores = averaged_scores if self.averaged else learned.scores
            self.recent.answered_wrong.add((scores > above) != learned.truth)

    def _parts(self, names: Sequence[str]) -> list[float]:
        """The parts of the settings' reference for columns with these names."""
        return [self._parts_by_name.get(name, 0.0) for name in names]


@compiled
def _limit(total: float, moved: float, negative: float, positive: float, steps: Vector, squared_norms: Vector) -> float:
    """The limit of ‖w‖² after these updates, in their order, if it was `total` before. A step has its label's sign.

    `moved` is the number of weight vectors that a step moves.
    """
    for i in range(len(steps)):
        margin = positive if steps[i] > 0.0 else negative
        total += moved * steps[i] * steps[i] * squared_norms[i] + 2.0 * abs(steps[i]) * margin
    return total
