"""The head of a snapshot: small JSON that names all parts of the state, with their digests.

`state_digest` is the SHA-256 of the canonical state: sorted JSON of identity, covered ranges, counts, and the digests
of names and arrays in fixed cuts. Members that depend on a clock or on how the state was reached (version, times,
runs, windows) are not in it. The name of a head is the SHA-256 of its own bytes, parent included.
"""

from copy import copy
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from service.learning.candidates import Candidate
from service.learning.classifier import Classifier, Counts
from service.learning.evaluation.confidence_sequences import PairedComparison
from service.learning.evaluation.mistake_bound import SegmentSums
from service.learning.evaluation.prequential import AverageCounts, Margins
from service.learning.identity import Identity
from service.learning.learner import Learner, OffsetGaps
from service.snapshots import blobs
from service.snapshots.blobs import Encoded, EncodedNames

SCHEMA = 1
"""The schema of heads. A release refuses heads with a newer one."""


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last record learned of a partition, so that a recreated topic is recognised."""

    offset: int
    timestamp: int
    crc32: int
    """The checksum of the key's bytes, then the value's."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next offset of a partition, and its last learned record."""

    offset: int
    fingerprint: Fingerprint | None = None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topic that records come from: another one may have the same name."""

    cluster: str = ""
    topic_id: str = ""
    """Empty if Kafka gives no ids."""

    def elsewhere(self, now: "Source") -> bool:
        """Whether `now` is in another cluster. An unknown cluster is no difference."""
        return bool(self.cluster and now.cluster and self.cluster != now.cluster)

    def recreated(self, now: "Source") -> bool:
        """Whether `now` is another topic. An unknown id is no difference."""
        return bool(self.topic_id and now.topic_id and self.topic_id != now.topic_id)


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that wrote a head. Empty if a command wrote it, or an early release."""

    group: str = ""
    """The consumer group."""
    process: str = ""
    """HOST:PID."""


UNKNOWN_WRITER = Writer()


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array: base blobs, and deltas that are written over them in order."""

    base: list[str]
    deltas: list[str] = []


class Observations(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Figures that are stored next to the state, and are not part of it."""

    squared_steps: float
    """The start's squared norm, and the most that the updates can have added to it: see `observations`."""
    recent_events: int
    recent_wrong: str
    """One bit for each event of the recent window, oldest first, packed, hexadecimal; so are the two flags below."""
    margins: Margins | None
    stretch: SegmentSums | None
    """The sums of the mistake bound. Its reference array is `Head.reference`."""
    recent_positive: str = ""
    recent_averaged: str = ""
    """Empty if the model keeps no average; `recent_positive` is empty with three labels or more."""
    averaged: AverageCounts = AverageCounts()
    pairs: list[PairedComparison] = []
    """Comparisons of predictions by two weights: see `learning.evaluation.confidence_sequences`."""
    averaged_missed: int | list[int] | None = None
    """`PrequentialWindow.missed`; with two labels only the number of the positive label. None without an average."""
    recent_truth: str = ""
    """The place of each event's label as little-endian u2, hexadecimal; only for three and more labels."""
    diverged: str | None = None
    """Why nothing more is learned and the weights do not answer: see `Learner.diverged`."""
    gaps: dict[str, OffsetGaps] = {}
    """Accepted gaps between batches, by partition."""


class KeptVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version kept for rollback."""

    version: int
    saved_at: float
    digest: str = ""
    """The digest of its head; '' in that head itself, which cannot hold its own."""


class CandidateState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate. All but its observations is state. Its arrays are among the head's."""

    identity: Identity
    since: dict[str, int]
    """The next offset when it began, by partition."""
    counts: Counts
    diverged_at: tuple[int, int] | None
    """Partition and offset of the event that it stopped before, or None."""
    observations: Observations


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of a snapshot. `saved_at` is in seconds since 1970. Partitions are decimal strings.

    A member that a later release adds has a default, so that older heads can be read. Older releases refuse it.
    """

    schema: int = SCHEMA
    model: str
    version: int
    parent: str
    saved_at: float
    identity: Identity
    state_digest: str
    order: Literal["log", "arrival"]
    source: Source
    writer: Writer = UNKNOWN_WRITER
    next: dict[str, Position]
    covered: dict[str, list[tuple[int, int]]]
    counts: Counts
    observations: Observations
    runs: blobs.Runs
    """The last runs since the last kept version. The earlier ones are in `run_blobs`."""
    run_blobs: list[str]
    kept: list[KeptVersion]
    columns: int
    arrays: dict[str, Array]
    reference: Array | None
    names: list[str]
    candidates: dict[str, CandidateState] | msgspec.UnsetType = msgspec.UNSET
    """Unset if there are none, and then not written, so that older releases can read the head."""

    @property
    def candidate_states(self) -> dict[str, CandidateState]:
        """The candidates."""
        return self.candidates or {}

    def kept_by(self, digest: str) -> list[KeptVersion]:
        """The kept versions with their digests, this head's own included, which is `digest`."""
        return [k if k.digest else replace(k, digest=digest) for k in self.kept]

    @property
    def refs(self) -> list[str]:
        """The digests of all blobs of this snapshot."""
        arrays = [*self.arrays.values(), *([self.reference] if self.reference else [])]
        return [*self.names, *self.run_blobs, *(d for a in arrays for d in (*a.base, *a.deltas))]


class Stored(NamedTuple):
    """The parts of a model that the store has."""

    arrays: dict[str, Encoded]
    reference: Encoded | None
    names: EncodedNames
    runs: list[str]


NOTHING_STORED = Stored({}, None, EncodedNames(0, []), [])


class Content(NamedTuple):
    """A learner's state as a head, and the blobs that the store lacks."""

    head: Head
    """Without what a save sets: model, version, parent, time, source, writer, next offsets, kept versions."""
    stored: Stored
    blobs: dict[str, bytes]


def snapshot_content(learner: Learner, before: Stored = NOTHING_STORED) -> Content:
    """Cut a learner's state into blobs, for a store that has `before`, and digest it.

    This takes long for many columns, so it may run in a thread. The learner must not change meanwhile.
    """
    arrays, new = dict[str, Encoded](), dict[str, bytes]()
    for name, array in learner.arrays.items():
        arrays[name], more = blobs.encode_array(array.copy(), before.arrays.get(name, blobs.NO_ARRAY))
        new |= more
    reference: Encoded | None = None
    if learner.main.observations.stretch is not None:
        # A reference that is the weights of a kept version is in the store already, under the same names.
        like = before.reference or arrays.get("w", blobs.NO_ARRAY)
        values = learner.main.observations.stretch.reference[: len(learner.columns)].ravel()
        reference, more = blobs.encode_array(values, like)
        new |= more
    names, more = blobs.encode_name_blobs(learner.columns.names, before.names)
    new |= more
    runs, rest, more = blobs.encode_runs(learner.runs, before.runs)
    new |= more
    stored = Stored(arrays, reference, names, runs)
    head = Head(
        model="",
        version=0,
        parent="",
        saved_at=0.0,
        identity=learner.identity,
        state_digest="",
        order="log" if len(learner.covered) <= 1 else "arrival",
        source=Source(),
        next={},
        covered={str(partition): list(ranges) for partition, ranges in sorted(learner.covered.items())},
        counts=learner.main.counts.copy(),
        observations=replace(observations(learner.main), gaps=learner.gaps.copy()),
        runs=rest,
        run_blobs=runs,
        kept=[],
        columns=len(learner.columns),
        arrays={name: _named(array) for name, array in arrays.items()},
        reference=_named(reference) if reference else None,
        names=names.blobs,
        candidates={name: _candidate(candidate) for name, candidate in learner.candidates.items()} or msgspec.UNSET,
    )
    return Content(replace(head, state_digest=digest_of(head, stored)), stored, new)


def _named(array: Encoded) -> Array:
    return Array(array.base, [digest for digest, _ in array.deltas])


def _candidate(candidate: Candidate) -> CandidateState:
    """A candidate as the head has it."""
    return CandidateState(
        identity=candidate.identity,
        since={str(partition): offset for partition, offset in sorted(candidate.since.items())},
        counts=candidate.counts.copy(),
        diverged_at=candidate.diverged_at,
        observations=observations(candidate),
    )


def digest_of(head: Head, stored: Stored) -> str:
    """SHA-256 of the canonical state, which this head describes and `stored` has the blocks of."""
    state = {name: getattr(head, name) for name in ("identity", "covered", "counts", "columns", "names")}
    state["arrays"] = {name: array.blocks for name, array in stored.arrays.items()}
    if head.candidates:
        members = ("identity", "since", "counts", "diverged_at")
        state["candidates"] = {name: {m: getattr(c, m) for m in members} for name, c in head.candidates.items()}
    return blobs.digest(msgspec.json.encode(msgspec.to_builtins(state), order="sorted"))


def observations(classifier: Classifier) -> Observations:
    """The observations of a classifier, as a head stores them."""
    watch = classifier.observations
    recent, sums = watch.recent, copy(watch.stretch.sums) if watch.stretch else None
    is_binary, truth = recent.classes == 2, recent.truth.last
    wrong, positive, averaged_wrong = (
        np.packbits(flags).tobytes().hex()
        for flags in (recent.wrong.last, truth == 1 if is_binary else truth[:0], recent.averaged_wrong.last)
    )
    missed = recent.missed if classifier.identity.average else None
    return Observations(
        squared_steps=watch.squared_steps,
        recent_events=len(recent.wrong.last),
        recent_wrong=wrong,
        margins=recent.margins,
        stretch=sums,
        recent_positive=positive,
        recent_averaged=averaged_wrong,
        averaged=recent.averaged,
        pairs=recent.pairs,
        averaged_missed=missed and (missed[1] if is_binary else missed.copy()),
        recent_truth="" if is_binary else truth.astype("<u2").tobytes().hex(),
        diverged=classifier.diverged,
    )
