"""A model's state and the one way it changes: `Learner.apply`.

The learner is to Kafka what a protocol library is to sockets: it is fed with record bytes and offsets and returns
what happened. State is what `snapshots.head` puts into the state digest: identity, covered ranges, names, arrays,
counts. Beside it stand observations (the recent window, the norm's limit, runs), which are kept but not state.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import ConfigurationError, OutOfOrder
from service.learning.candidates import Candidate, stored_as
from service.learning.classifier import Classifier, Scores, divergence_reason, majority_baseline, state_of
from service.learning.columns.columns import columns_for
from service.learning.evaluation.last_events import LastEvents
from service.learning.events.batch import Decoder, Reject
from service.learning.identity import SUMS, Identity
from service.learning.kernel.scaling import StandardScaler
from service.learning.options import DEFAULT, Options
from service.learning.records import Records
from service.learning.weights_file import WeightsFile

Ranges = dict[int, list[tuple[int, int]]]
"""Covered offsets by partition, as half-open [from, to) in ascending order; the last `to` is the next offset."""


def with_gap(ranges: Sequence[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """These ranges with the next offset moved on to `offset`: what is between is a hole, never learned."""
    start, at = ranges[-1]
    if offset == at:
        return list(ranges)
    # An empty range behind a hole only says where that one ended; an empty first one says where the model began.
    held = ranges[:-1] if start == at and len(ranges) > 1 else ranges
    return [*held, (offset, offset)]


class Outcome(NamedTuple):
    """What one call of `apply` did: records consumed, those set aside, and why the model stopped, if it did."""

    consumed: int
    rejects: list[Reject]
    diverged: str | None


class Learner(Classifier):
    """One model: a classifier that reads the log, and knows what of it is covered. Not shared between threads.

    >>> learner = Learner(Identity())
    >>> learner.begin({0: 0})
    >>> outcome = learner.apply(0, Records.of(0, [b'{"features": {"a": 2}, "label": 1}', b"no event"]))
    >>> [reject.reason for reject in outcome.rejects], learner.next
    (['not-json'], {0: 2})
    >>> learner.score({"a": 1.0, "never seen": 1.0})
    (3.0, 1)
    """

    def __init__(self, identity: Identity, *, options: Options = DEFAULT, start: WeightsFile | None = None) -> None:
        """`start` has the weights of an identity whose start is given ones; a snapshot has them already."""
        super().__init__(identity, columns_for(identity), options)
        self.covered: Ranges = {}
        self.runs: list[tuple[int, int, int]] = []
        self.candidates: dict[str, Candidate] = {}
        """What learns side by side with it, by name."""
        self._decoder = Decoder(identity, self.columns)
        self.flattener = self._decoder.flattener
        self.scaler = StandardScaler(identity) if identity.scale == "standard" else None
        """What values are scaled by, if at all."""
        self.last_events = LastEvents(identity)
        if start is not None:
            self.columns.extend(start.names or ())
            w = start.vector
            if len(w) != len(self.columns):
                raise ConfigurationError(
                    f"start: {len(w) - 1} weights are given where the model has {len(self.columns) - 1} features"
                )
            self._state = state_of(identity, {"w": w, "late": np.zeros(len(w))})
        self.make_room(len(self.columns))
        self.observations.grow(self.weights, 0)
        self.observations.use_given_reference(self.weights, 0, self.columns.names)

    @property
    def next(self) -> dict[int, int]:
        """The offset of the next record to learn, by partition."""
        return {partition: ranges[-1][1] for partition, ranges in self.covered.items()}

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """What is to be stored, by name: also the sums that numbers are scaled by, and the candidates' own."""
        beside = {stored_as(n, name): a for n, one in self.candidates.items() for name, a in one.arrays.items()}
        return super().arrays | (self.scaler.arrays(len(self.columns)) if self.scaler else {}) | beside

    @property
    def answering(self) -> str | None:
        """The candidate that answers, if any: the one that is to, once it has begun and as long as it learns."""
        candidate = self.candidates.get(name := self.observations.options.serve)
        return name if candidate and not candidate.diverged else None

    def by(self, candidate: str | None) -> Classifier:
        """The candidate of this name; without one the model itself. Raises KeyError."""
        return self if candidate is None else self.candidates[candidate]

    def promoted(self) -> "Learner":
        """The candidate that answers as the model that it would be; the model itself where none does."""
        if self.answering is None:
            return self
        learner = copy(self)  # of the log and the columns; the rest is the candidate's
        vars(learner).update(vars(self.candidates[self.answering]))
        return learner

    def begin(self, starts: Mapping[int, int]) -> None:
        """Cover nothing yet, from these offsets on. Partitions that are covered already stay as they are."""
        for partition, offset in sorted(starts.items()):
            self.covered.setdefault(partition, [(offset, offset)])
            for candidate in self.candidates.values():
                candidate.since.setdefault(partition, offset)

    def add_candidate(self, name: str, identity: Identity) -> None:
        """Have this candidate too, which begins at the next event."""
        candidate = Candidate(identity, self.columns, self.observations.options.beside(name), self.next)
        candidate.begin()
        self.candidates = dict(sorted((self.candidates | {name: candidate}).items()))

    def reconcile(self) -> tuple[list[str], list[str]]:
        """Have the candidates that are set: those that stay what they are go on, others begin at the next event.

        Returns who began, and who was dropped; one that is to learn with other settings is both.
        """
        wanted = self.observations.options.candidates
        stay = {n: c for n, c in self.candidates.items() if n in wanted and wanted[n].identity == c.identity}
        dropped, self.candidates = sorted(self.candidates.keys() - stay), stay
        began = sorted(wanted.keys() - stay)
        for name in began:
            self.add_candidate(name, wanted[name].identity)
        others, recent = {*began, *dropped}, self.observations.recent
        recent.pairs = [pair for pair in recent.pairs if others.isdisjoint((pair.first, pair.second))]
        return began, dropped

    def load(self, arrays: Mapping[str, NDArray[np.float64]], covered: Ranges) -> None:
        """Take over what of restored state is not every classifier's, before `restore` does the rest."""
        if self.scaler:
            self.scaler = StandardScaler.of(self.identity, [arrays[name] for name in SUMS])
        self.covered = covered

    def cover(self, partition: int, offset: int) -> None:
        """Cover the offsets before `offset`: they were learned, or hold no record (compacted, control, aborted)."""
        start, at = self.covered[partition][-1]
        if offset == at:
            return
        self.covered[partition][-1] = (start, offset)
        # The order across partitions is this learner's own, so it is recorded; with one it stays a single run.
        if self.runs and self.runs[-1][0] == partition and self.runs[-1][2] == at:
            self.runs[-1] = (partition, self.runs[-1][1], offset)
        else:
            self.runs.append((partition, at, offset))

    def skip(self, partition: int, offset: int) -> None:
        """Go on at `offset`, and leave out the records before it: a hole in what is covered."""
        self.covered[partition] = with_gap(self.covered[partition], offset)

    def apply(self, partition: int, records: Records, enough: Callable[[], bool] | None = None) -> Outcome:
        """Learn records of a partition, whose offsets are contiguous, in order.

        Raises OutOfOrder if they do not begin at the partition's next offset. `Outcome.consumed` is smaller than the
        number of records if the model diverges, which stops it before that record, or if it was `enough`, which is
        asked after each that takes time.
        """
        if not len(records):
            return Outcome(0, [], None)
        first, values = int(records.offsets[0]), records.values
        if first != self.next.get(partition):
            raise OutOfOrder(f"partition {partition}: offset {first} offered, {self.next.get(partition)} is next")
        batch, rejects = self._decoder.decode(values, enough)
        known = len(self.columns)
        self.last_events.add(partition, first, values, batch, known + len(batch.names))
        self.make_room(known + len(batch.names))
        self.observations.make_room(known + len(batch.names), batch.names)
        if self.scaler:
            batch = self.scaler.learn(batch)
        learned = self.learn(batch)
        consumed, diverged = len(batch.records) + len(rejects) + len(batch.skipped), None
        done = len(learned.scores)
        if done < len(batch.labels):
            # The events from here on changed nothing; neither may their names, rejections and counts.
            consumed = batch.records[done]
            diverged = self.diverged = divergence_reason(self.identity, partition, first + consumed)
            batch, rejects = batch.first(done), [reject for reject in rejects if reject.record < consumed]
            if self.scaler:
                self.scaler.undo(done)
        self.columns.extend(batch.names)
        truth = learned.truth
        right = {
            "last": learned.predicted == truth,
            "baseline": majority_baseline(np.array(self.counts.by_label), truth) == truth,
        }
        if self.identity.average:
            right["average"] = learned.averaged == truth
        for name, candidate in self.candidates.items():
            if (its := candidate.follow(batch, known, partition, first)) is not None:
                right[name] = its
        self.count(batch, learned, known)
        self.observations.recent.compare(right)
        self.counts.ignored_features += len(batch.ignored)
        self.counts.skipped += len(batch.skipped)
        for reject in rejects:
            self.counts.rejected[reject.reason] = self.counts.rejected.get(reject.reason, 0) + 1
        self.cover(partition, first + consumed)
        return Outcome(consumed, rejects, diverged)

    def score(
        self, features: Mapping[str, float] | Sequence[float], by: Classifier | None = None
    ) -> tuple[Scores, int]:
        """s = w·x for checked features of this model's mode, and how many of them the model does not know.

        w are the weights that are served, of the model itself or of a candidate.
        """
        pairs, unknown = self.columns.find(features)
        return (by or self).score_of(self.scaler.merged(pairs) if self.scaler else pairs), unknown

    def make_room(self, count: int) -> None:
        """Also in what values are scaled by, and of the candidates."""
        super().make_room(count)
        for candidate in self.candidates.values():
            candidate.make_room(count)
        if self.scaler:
            self.scaler.make_room(len(self._state))
