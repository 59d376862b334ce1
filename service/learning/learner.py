"""A model's state and how it changes: `Learner.apply` learns records, `Learner.amend` changes settings.

The learner does no I/O: it takes record bytes and offsets, and returns what happened. State is what
`snapshots.content.digest_of` hashes: identity, amendments, covered ranges, `lists_since`, names, arrays, counts,
candidates, and who answers with `serve = "best"`.
Observations (the recent window, the limit of the norm) and runs are stored next to the state and are not part of it.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import ConfigurationError, OutOfOrder
from service.learning.best import MAX_COMPARED, BestPredictor, Predictor, Takeover
from service.learning.classifier import Candidate, Classifier, Scores, majority_baseline, stored_as
from service.learning.columns.columns import Named, columns_for
from service.learning.evaluation.feature_watch import FeatureWatch
from service.learning.evaluation.last_events import KEPT_IDS, LastEvents
from service.learning.evaluation.prequential import GivenAnswer, GivenAnswers
from service.learning.events.event_reader import NONE_BEFORE, EventReader
from service.learning.events.flatten import Features
from service.learning.events.read_events import NOTHING_READ, ReadEvents, Reject
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import AMENDABLE, Identity
from service.learning.join.join import Join, JoinState
from service.learning.kernel.scaling import StandardScaler
from service.learning.options import BEST, DEFAULT, MODEL_ITSELF, Options
from service.learning.records import PartitionId, Place, Records
from service.learning.weights_file import WeightsFile

MAX_JUMPS = 10
"""The columns whose jump of the variance is kept."""


def with_gap(ranges: Sequence[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """These ranges with `offset` as the next one; the offsets in between are a gap that is never learned."""
    start, end = ranges[-1]
    if offset == end:
        return list(ranges)
    # An empty range after a gap only says where the gap ended; an empty first range says where the model began.
    return [*(ranges[:-1] if start == end and len(ranges) > 1 else ranges), (offset, offset)]


class Outcome(NamedTuple):
    """The result of `apply`: the number of records consumed, the rejects, and why the model stopped, if it did."""

    consumed: int
    rejects: list[Reject]
    diverged: str | None


class OffsetGaps(msgspec.Struct):
    """The accepted gaps in the log of a partition: their number, and the first and last as [from, to) offsets."""

    count: int
    first: tuple[int, int]
    last: tuple[int, int]


class Amendment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of settings in the life of a model."""

    identity: Identity
    """The identity before it."""
    since: dict[PartitionId, int]
    """The next offset of each partition when it happened."""


class Learner:
    """One model: it reads events from the log, and its classifiers learn them. Not for several threads.

    >>> learner = Learner(Identity())
    >>> learner.begin({PartitionId(0): 0})
    >>> outcome = learner.apply(Records.from_values(0, [b'{"features": {"a": 2}, "label": 1}', b"no event"]))
    >>> [reject.reason for reject in outcome.rejects], learner.next
    (['not-json'], {PartitionId(0): 2})
    >>> learner.score({"a": 1.0, "never seen": 1.0}, learner.main)
    (3.0, 1)
    """

    def __init__(self, identity: Identity, *, options: Options = DEFAULT, start: WeightsFile | None = None) -> None:
        """`start` is needed if the identity starts from a file and no snapshot is restored."""
        self.identity, self.columns, self.options = identity, columns_for(identity), options
        self.main = Classifier(identity, self.columns, options)
        """The model's own classifier."""
        self.candidates: dict[str, Candidate] = {}
        """The candidates by name, in the order of their names."""
        self.best: BestPredictor | None = None
        """Chooses who answers, if `options.serve` was BEST when the candidates were reconciled."""
        self.takeovers: list[Takeover] = []
        """The takeovers that are not reported yet."""
        self.covered: dict[PartitionId, list[tuple[int, int]]] = {}
        """Covered offsets by partition, as half-open [from, to) in ascending order. The last `to` is the next offset.

        New partitions come last, so that the index of a partition stays."""
        self.runs: list[tuple[int, int, int]] = []
        """The order in which offsets were learned: the index of the partition in `covered`, from, to."""
        self.amendments: list[Amendment] = []
        """The changes of the identity, in their order."""
        self.lists_since: dict[PartitionId, int] = {}
        """The offsets of a partition from which on lists of objects and byte order marks are read.

        Before them they are rejected, since a release up to 0.2 learned the records. A partition that is not here has
        them from its first record on."""
        self.gaps: dict[PartitionId, OffsetGaps] = {}
        """Gaps in the log that the reader accepted, by partition."""
        self._reader = EventReader(identity)
        self.flattener = self._reader.flattener
        self.join = Join(identity, options) if identity.needs_ids else None
        """The events that wait for their labels, if labels come later."""
        self._label_reader = EventReader(identity, labels=True) if self.join else self._reader
        self.scaler = StandardScaler(identity) if identity.scale == "standard" else None
        self.jumps: dict[str, tuple[PartitionId, int]] = {}
        """The first record of which one number made a column's variance jump, by name of the column."""
        self._named = self.columns if isinstance(self.columns, Named) else None
        self.watch = FeatureWatch()
        """What features events usually have, if features have names."""
        self.last_events = LastEvents(identity)
        self.answers = GivenAnswers(options.window, identity.classes)
        """How often the answers were right that events brought with them."""
        self.readers = 0
        """The number of threads that read all weights. Learning waits for them."""
        if start is not None:
            self.columns.extend(start.names or ())
            if len(start.vector) != len(self.columns):
                raise ConfigurationError(f"start: {len(start.vector) - 1} weights for {len(self.columns) - 1} features")
        self.make_room(len(self.columns))
        self.main.begin(start.vector if start is not None else None)
        if self.join:
            self.main.counts.join = self.join.counts

    def restore_join(self, state: JoinState, counts: Mapping[str, int]) -> Join:
        """Continue a join; `remember` brings back what it remembers. Call it after `covered` is restored."""
        self.join = Join(self.identity, self.options)
        self.join.restore(state, list(self.covered), counts)
        return self.join

    @property
    def next(self) -> dict[PartitionId, int]:
        """The offset of the next record to learn, by partition."""
        return {partition: ranges[-1][1] for partition, ranges in self.covered.items()}

    @property
    def identities(self) -> list[Identity]:
        """The identities under which it learned, in their order; the last one is the present one."""
        return [*(amendment.identity for amendment in self.amendments), self.identity]

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The arrays to store, by name: the weights, the sums by which numbers are scaled, the candidates' weights."""
        candidates = {stored_as(n, name): a for n, c in self.candidates.items() for name, a in c.arrays.items()}
        return self.main.arrays | (self.scaler.arrays(len(self.columns)) if self.scaler else {}) | candidates

    @property
    def serve(self) -> str:
        """The predictor to answer: `options.serve`, or the best one if that is BEST and one is chosen."""
        return self.best.answering if self.best and self.options.serve == BEST else self.options.serve

    @property
    def answering(self) -> str | None:
        """The candidate that answers, if any: the one in `serve`, once it has begun and as long as it learns."""
        candidate = self.candidates.get(name := self.serve)
        return name if candidate and not candidate.diverged else None

    @property
    def answering_name(self) -> str:
        """The predictor that answers: last, average, or the name of a candidate."""
        return self.answering or ("average" if self.main.averaged else "last")

    def classifier(self, candidate: str | None) -> Classifier:
        """The candidate of this name; without one the model's own classifier. Raises KeyError."""
        return self.main if candidate is None else self.candidates[candidate]

    @property
    def serving(self) -> Classifier:
        """The classifier that answers."""
        return self.classifier(self.answering)

    def begin(self, starts: Mapping[PartitionId, int]) -> None:
        """Begin partitions at these offsets. Partitions that have begun already stay as they are."""
        for partition, offset in sorted(starts.items()):
            if self.join and partition not in self.covered:
                self.join.add_partition(partition)
            self.covered.setdefault(partition, [(offset, offset)])
            for since in (each.since for each in (*self.candidates.values(), self.best) if each):
                since.setdefault(partition, offset)

    def amend(self, identity: Identity) -> None:
        """Learn under this identity from the next event on; raises ConfigurationError unless only AMENDABLE differ."""
        if fixed := "; ".join(identity.differences(self.identity, AMENDABLE)):
            raise ConfigurationError(f"a stored model can change {', '.join(AMENDABLE)}, but not {fixed}")
        self.amendments.append(Amendment(self.identity, self.next))
        self.identity, self.main = identity, self.main.amended(identity)

    def add_candidate(self, name: str, identity: Identity) -> None:
        """Add a candidate, which begins at the next event."""
        candidate = Candidate(identity, self.columns, self.options.candidate_options(name), self.next)
        candidate.begin()
        self.candidates = dict(sorted((self.candidates | {name: candidate}).items()))

    def reconcile(self) -> tuple[list[str], list[str]]:
        """Make the candidates match the settings: unchanged ones go on, new or changed ones begin at the next event.

        Returns the names that began and those that were dropped. A candidate with changed settings is both.
        """
        configured, recent = self.options.candidates, self.main.observations.recent
        stay = {n: c for n, c in self.candidates.items() if n in configured and configured[n].identity == c.identity}
        began, dropped = sorted(configured.keys() - stay), sorted(self.candidates.keys() - stay)
        self.candidates = dict(stay)
        for name in began:
            self.add_candidate(name, configured[name].identity)
        pairs = [pair for pair in recent.pairs if {*began, *dropped}.isdisjoint((pair.first, pair.second))]
        recent.restore_comparisons(pairs, recent.previous)
        weights: dict[str, str] = {name: configured[name].serve for name in self.candidates}
        window, best = min(self.options.window, MAX_COMPARED), self.best
        if self.options.serve != BEST:
            self.best = None
        elif best is None or began or dropped or (best.window, best.weights) != (window, weights):
            own = MODEL_ITSELF[bool(self.identity.average)]
            first = self.serve if best and self.serve in {*MODEL_ITSELF, *stay} else own
            self.best = BestPredictor(window, weights, self.next, self.main.counts.events, first, first)
        self.use_best()
        return began, dropped

    def use_best(self) -> None:
        """Let each classifier answer with the weights that `best` has chosen, if the settings say so."""
        if self.options.serve == BEST:
            self.main.observations.averaged = bool(self.identity.average) and self.serve != "last"
            for name, weights in (self.best.weights if self.best else {}).items():
                self.candidates[name].observations.averaged = weights == "average"

    def cover(self, partition: PartitionId, offset: int) -> None:
        """Cover the offsets before `offset`: they were learned, or have no record (compacted, control, aborted).

        Raises OutOfOrder if they are covered and others too.
        """
        ranges = self.covered[partition]
        start, end = ranges[-1]
        if offset < end:
            raise OutOfOrder(f"partition {partition}: offset {offset} would be next, after {end}")
        if offset == end:
            return
        ranges[-1] = (start, offset)
        # The order across partitions is this learner's own, so it is recorded; one partition stays a single run.
        index = list(self.covered).index(partition)
        begin = self.runs.pop()[1] if self.runs and self.runs[-1][::2] == (index, end) else end
        self.runs.append((index, begin, offset))

    def skip(self, partition: PartitionId, offset: int) -> None:
        """Go on at `offset` and leave out the records before it, which makes a gap in the covered offsets."""
        self.covered[partition] = with_gap(self.covered[partition], offset)

    def add_gap(self, partition: PartitionId, gap: tuple[int, int]) -> None:
        """Count a gap in the log, [from, to), that the reader accepted. It may continue the last one."""
        before = self.gaps.get(partition, OffsetGaps(0, gap, gap))
        if before.last[1] == gap[0]:
            gap = before.last[0], gap[1]
            self.gaps[partition] = OffsetGaps(before.count, gap if before.count == 1 else before.first, gap)
        else:
            self.gaps[partition] = OffsetGaps(before.count + 1, before.first, gap)

    def apply(
        self, records: Records, enough: Callable[[], bool] | None = None, answers: Sequence[GivenAnswer] = ()
    ) -> Outcome:
        """Learn records in order, and cover the offsets before each that have no record.

        Raises OutOfOrder if a record is covered already. `Outcome.consumed` is smaller than the number of records if
        the model diverges, which stops it before that record, or if `enough` returned True; it is called after each
        record that takes time. With a join nothing is consumed if the model diverges, and fewer records are consumed if
        they close many windows: call again. `answers` are those that were given about some of the records.
        """
        if not len(records):
            return Outcome(0, [], None)
        main = self.main
        for partition, first in records.starts():
            ranges = self.covered.get(partition)
            if ranges is None or first < ranges[-1][1]:
                raise OutOfOrder(f"partition {partition}: offset {first} offered, {self.next.get(partition)} is next")
        events, labels, consumed = self.read(records, enough)
        due, learned = events, 0
        codes = self.answers.codes(len(records), answers) if answers else None
        if self.join is None:
            learned = self._learn(due, records.values, records.place, None if codes is None else codes[due.records])
        else:
            consumed, joined = self.join.apply(records[:consumed], events, labels, codes)
            main.counts.join, due = self.join.counts, NOTHING_READ
            if len(joined.labels):
                places = map(joined.place, range(len(joined.labels) if self.lists_since else 0))
                before = np.array([offset < self.lists_since.get(partition, 0) for partition, offset in places])
                due = self._reader.read(joined.values, as_before=before)._replace(labels=joined.labels)
                learned = self._learn(due, joined.values, joined.place, joined.answers)
        if diverged := learned < len(due.labels):
            consumed = 0 if self.join else due.records[learned]
        rejects = [reject for read in (events, labels) for reject in read.rejects if reject.record < consumed]
        skipped = [record for read in (events, labels) for record in read.skipped if record < consumed]
        if skipped:
            self.last_events.skipped = records.place(skipped[-1])
        main.counts.skipped += len(skipped)
        for reject in rejects:
            main.counts.rejected[reject.reason] = main.counts.rejected.get(reject.reason, 0) + 1
        for i in records.ends(consumed):
            partition, offset = records.place(i)
            self.cover(partition, offset + 1)
        if diverged and not self.join:
            self.cover(*records.place(consumed))
        return Outcome(consumed, rejects, main.diverged if diverged else None)

    def remember(self, records: Records, answers: Sequence[GivenAnswer] = ()) -> None:
        """Bring back what the join remembered of records, as far as they are covered; each partition's in order."""
        codes = self.answers.codes(len(records), answers) if answers else None
        assert self.join is not None  # noqa: S101 - only a join remembers
        for start, end in self.covered[records.partitions[0]]:
            own = slice(records.find(start), records.find(end))
            part = records[own]
            events, labels, _ = self.read(part)
            self.join.rebuild(part, events, labels, None if codes is None else codes[own])

    def read(self, records: Records, enough: Callable[[], bool] | None = None) -> tuple[ReadEvents, ReadEvents, int]:
        """The events and the label records among these records, and how many records were read."""
        values, join, before = records.values, self.join, NONE_BEFORE
        if self.lists_since and any(
            first < self.lists_since.get(partition, 0) for partition, first in records.starts()
        ):
            before = records.offsets < records.of_each(lambda partition: self.lists_since.get(partition, 0))

        def read(reader: EventReader, rows: list[int]) -> ReadEvents:
            own = before[rows] if len(before) else before
            return reader.read(values[rows], enough, own).moved(rows) if rows else NOTHING_READ

        if join is None:
            events = self._reader.read(values, enough, before)
            return events, NOTHING_READ, events.size
        of_labels = records.of_each(join.is_of_labels)
        rows, label_rows = np.flatnonzero(~of_labels).tolist(), np.flatnonzero(of_labels).tolist()
        events = read(self._reader, rows)
        if join.shares_topic:
            label_rows, events = events.skipped, events._replace(skipped=[])
            rows = np.setdiff1d(rows, label_rows).tolist()
        labels = read(self._label_reader, label_rows)
        unread = rows[events.size :][:1] + label_rows[labels.size :][:1]
        return events, labels, min(unread, default=len(records))

    def _learn(self, events: ReadEvents, values: ValueBuffer, place: Place, answers: NDArray[np.int32] | None) -> int:
        """Let all classifiers learn events, which were read from these values. `answers` has the code of each.

        Returns how many they learned: fewer than there are if the model diverges.
        """
        main, columns_before = self.main, len(self.columns)
        decoded = self.columns.decode(events)
        self.last_events.add(values, decoded, columns_before + len(decoded.names))
        # To make strings takes time.
        if not self.identity.needs_ids and main.counts.events % (10 * KEPT_IDS) < KEPT_IDS:
            self.last_events.add_ids(events.ids)
        self.make_room(columns_before + len(decoded.names))
        main.observations.make_room(columns_before + len(decoded.names), decoded.names)
        batch, learned = main.learn(self.scaler.learn(decoded) if self.scaler else decoded, place)
        if len(batch.labels) < len(decoded.labels) and self.scaler:
            self.scaler.undo(decoded, len(batch.labels))
        self.columns.extend(batch.names)
        if self._named is not None:
            self.watch.follow(batch, self._named, place)
        for event, column in self.scaler.jumps if self.scaler else ():
            if event < len(batch.labels) and len(self.jumps) < MAX_JUMPS:
                self.jumps.setdefault(self.columns.name_of(column), place(batch.records[event]))
        baseline = majority_baseline(np.array(main.counts.by_label), learned.truth)
        predicted = {"last": learned.predicted, "baseline": baseline}
        if self.identity.average:
            predicted["average"] = learned.averaged
        right = {name: labels == learned.truth for name, labels in predicted.items()}
        flags = {name: each.follow(batch, columns_before, place) for name, each in self.candidates.items()}
        right |= {name: own for name, own in flags.items() if not self.candidates[name].diverged}
        main.count(batch, learned, columns_before)
        main.observations.recent.compare(right)
        if self.best and len(batch.labels):
            self._decide(self.best, len(batch.labels), flags, lambda i: place(batch.records[i]))
        if answers is not None and (answers >= 0).any():
            self.answers.add(answers[: len(batch.labels)], learned.truth)
        main.counts.ignored_features += len(batch.ignored)
        return len(batch.labels)

    def _decide(self, best: BestPredictor, count: int, flags: Mapping[str, Sized], place: Place) -> None:
        """Decide who answers, after `count` events, of which each candidate learned as many as it has `flags`.

        `place` returns the record of each of these events.
        """
        own, end = self.main.observations.recent, self.main.counts.events
        weights = MODEL_ITSELF[::-1] if self.identity.average else MODEL_ITSELF[:1]
        predictors = {name: Predictor(own, name == "average", end) for name in weights}
        for name, learned in flags.items():
            recent = self.candidates[name].observations.recent
            predictors[name] = Predictor(recent, best.weights[name] == "average", end - count + len(learned))
        for name, first, last in best.follow(predictors, end - count, place, self.takeovers):
            own.add_served(*predictors[name], first, last, end)
        self.use_best()

    def score(self, features: Features, classifier: Classifier) -> tuple[Scores, int]:
        """s = w·x for checked features of this model's mode, and how many of them the model does not know.

        w are the weights of the classifier that answer.
        """
        pairs, unknown = self.columns.find(features)
        return classifier.score_of(self.scaler.merged(pairs) if self.scaler else pairs), unknown

    def make_room(self, count: int) -> None:
        """Give the classifiers and the scaler at least this many columns."""
        room = self.main.make_room(count)
        for candidate in self.candidates.values():
            candidate.make_room(count)
        if self.scaler:
            self.scaler.make_room(room)
