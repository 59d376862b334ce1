"""The head of a snapshot: small JSON that names all parts of the state, with their digests.

A head is read whole or not at all. Damage and heads of other releases are told apart.

Members that depend on a clock or on how the state was reached (version, times, runs, windows) are not part of the state
digest. The name of a head is the SHA-256 of its own bytes, parent included.
"""

from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Literal

import msgspec
from msgspec.structs import replace

from service.errors import SnapshotDamaged, SnapshotForeign
from service.learning.best import BestPredictor
from service.learning.classifier import Counts, stored_as
from service.learning.evaluation.confidence_sequences import PairedComparison
from service.learning.evaluation.feature_watch import FeatureFigures
from service.learning.evaluation.mistake_bound import SegmentSums
from service.learning.evaluation.prequential import Margins, PredictedCounts, Ranking
from service.learning.identity import FOLD, Identity
from service.learning.join.join import JoinState
from service.learning.learner import Amendment, OffsetGaps
from service.learning.records import PartitionId
from service.snapshots import blobs

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


class TopicIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topic that records come from, in heads `source`: another topic may have the same name."""

    cluster: str = ""
    topic_id: str = ""
    """Empty if Kafka gives no ids."""

    def elsewhere(self, now: "TopicIdentity") -> bool:
        """Whether `now` is in another cluster. An unknown cluster is no difference."""
        return bool(self.cluster and now.cluster and self.cluster != now.cluster)

    def recreated(self, now: "TopicIdentity") -> bool:
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


class StoredTally(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many answers were right: see `learning.evaluation.prequential`."""

    events: int
    right: int
    last: int
    """The number of the last answers, and one bit for each, as in `StoredObservations`."""
    last_right: str


class StoredObservations(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Figures that are stored next to the state, and are not part of it."""

    squared_steps: float
    """The start's squared norm, and the most that the updates can have added to it: see `observations`."""
    recent_events: int
    recent_wrong: str
    """One bit for each event of the recent window, oldest first, packed, hexadecimal; so are the two flags below."""
    margins: Margins | None
    bound_segment: SegmentSums | None = msgspec.field(name="stretch")
    """The sums of the mistake bound. Its reference array is `Head.reference`."""
    recent_positive: str = ""
    recent_averaged: str = ""
    """Empty if the model keeps no average; `recent_positive` is empty with three labels or more."""
    averaged: PredictedCounts = PredictedCounts()
    pairs: list[PairedComparison] = []
    """Comparisons of predictions by two weights: see `learning.evaluation.confidence_sequences`."""
    averaged_missed: int | list[int] | None = None
    """`PrequentialWindow.missed`; with two labels only the number of the positive label. None without an average."""
    recent_truth: str = ""
    """The index of each event's label as little-endian u2, hexadecimal; only for three and more labels."""
    diverged: str | None = None
    """Why nothing more is learned and the weights do not answer: see `Learner.diverged`."""
    gaps: dict[PartitionId, OffsetGaps] = {}
    """Accepted gaps between batches, by partition."""
    jumps: dict[str, tuple[PartitionId, int]] = {}
    """`Learner.jumps`."""
    features: FeatureFigures = FeatureFigures()
    answers: dict[str, StoredTally] = {}
    """The answers that were given, in all ("") and by candidate."""
    previous: PredictedCounts = PredictedCounts()
    """The label of the event before as a prediction. Not counted before a release that knows it."""
    ranking: Ranking = Ranking()
    """How well recent scores ranked the events. The scores are not stored."""
    recent_answered: str = ""
    """One bit for each wrong answer, as above. Empty without `positive_above`."""
    recent_served_events: int = 0
    recent_served: str = ""
    """With `serve = "best"`: the number of recent events that were answered, and one bit for each wrong answer."""
    served: list[list[int]] = []
    """`PrequentialWindow.served`, with `serve = "best"`."""


class KeptVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version kept for rollback."""

    version: int
    saved_at: float
    digest: str = ""
    """The digest of its head; '' in that head itself, which cannot hold its own."""


class CandidateState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored state of one candidate. Its arrays are in `Head.arrays`. Only `observations` is outside the digest."""

    identity: Identity
    since: dict[PartitionId, int]
    """The next offset when it began, by partition."""
    counts: Counts
    diverged_at: tuple[PartitionId, int] | None
    """Partition and offset of the event that it stopped before, or None."""
    observations: StoredObservations


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of a snapshot. `saved_at` is in seconds since 1970. Partitions are written as text.

    Every new field of a head has a default, so that older heads can be read. Older releases refuse it.
    """

    schema: int = SCHEMA
    model: str = ""
    version: int = 0
    parent: str = ""
    saved_at: float = 0.0
    identity: Identity
    state_digest: str = ""
    order: Literal["log", "arrival"]
    source: TopicIdentity = TopicIdentity()
    writer: Writer = UNKNOWN_WRITER
    next: dict[PartitionId, Position] = {}
    covered: dict[PartitionId, list[tuple[int, int]]]
    counts: Counts
    observations: StoredObservations
    runs: blobs.Runs
    """The last runs since the last kept version. The earlier ones are in `run_blobs`."""
    run_blobs: list[str]
    kept: list[KeptVersion] = []
    columns: int
    arrays: dict[str, Array]
    reference: Array | None
    names: list[str]
    candidates: dict[str, CandidateState] | msgspec.UnsetType = msgspec.UNSET
    amendments: list[Amendment] | msgspec.UnsetType = msgspec.UNSET
    """Both are unset if there are none, and then not written, so that older releases can read the head."""
    lists_since: dict[PartitionId, int] | msgspec.UnsetType = msgspec.UNSET
    """`Learner.lists_since`. It is unset if a release up to 0.2 learned all records."""
    join: JoinState | msgspec.UnsetType = msgspec.UNSET
    best: BestPredictor | msgspec.UnsetType = msgspec.UNSET
    """Unset unless `serve` is best."""

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

    def encode(self) -> bytes:
        """The head's bytes. Their SHA-256 is its name."""
        return msgspec.json.encode(self, enc_hook=attrgetter("as_json"))

    @staticmethod
    def decode(data: bytes, digest: str) -> "Head":
        """The head with this digest.

        Raises SnapshotDamaged if the bytes do not match the digest. Raises SnapshotForeign if the head is of another
        fold, or has members that this release does not know: the next save would drop them.
        """
        if blobs.digest(data) != digest:
            raise SnapshotDamaged(f"the head's bytes do not match their digest {digest[:12]}")
        try:
            head = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _newer(digest, str(error)) from error
        if head.schema > SCHEMA:
            raise _newer(digest, f"it has schema {head.schema}, this release reads {SCHEMA}")
        if head.identity.fold > FOLD:
            raise _newer(digest, f"it has fold {head.identity.fold}, this release knows {FOLD}")
        if head.identity.fold < FOLD:
            raise SnapshotForeign(
                f"head {digest[:12]} was learned by an older release, to which records mean something else (it has "
                f"fold {head.identity.fold}, this one {FOLD}): run that release, or learn the log again with "
                f"`perceptron reset -m {head.model} --yes`"
            )
        extra = [stored_as(n, array) for n, c in head.candidate_states.items() for array in c.identity.weight_arrays]
        if head.arrays.keys() != (expected := {*head.identity.arrays, *extra}):
            raise _newer(digest, f"it has arrays {', '.join(head.arrays)}, expected {', '.join(sorted(expected))}")
        return head

    @staticmethod
    def decode_current(model: str, digest: str, data: bytes) -> "Head":
        """The model's current head from the store's bytes; raises what `decode` raises, naming the model."""
        try:
            return Head.decode(data, digest)
        except SnapshotDamaged as error:
            raise damaged(model, str(error)) from error
        except SnapshotForeign as error:
            raise SnapshotForeign(f"model {model}: {error}") from error

    def kept_versions(self, digest: str, stored: Iterable[bytes]) -> list[tuple[str, "Head"]]:
        """The kept versions with their digests, from their stored bytes. Other bytes are left out."""
        digests = {k.digest for k in self.kept_by(digest)}
        versions = list[tuple[str, Head]]()
        for data in stored:
            if (name := blobs.digest(data)) in digests:
                with suppress(SnapshotForeign):
                    versions.append((name, Head.decode(data, name)))
        return versions


_decoder = msgspec.json.Decoder(Head, dec_hook=lambda _, stored: PartitionId.from_text(str(stored)))


def _newer(digest: str, why: str) -> SnapshotForeign:
    return SnapshotForeign(f"head {digest[:12]} was written by a newer release ({why}): run that release")


def damaged(model: str, what: str) -> SnapshotDamaged:
    """The error of a model whose head cannot be read, so that no rollback helps."""
    return SnapshotDamaged(f"model {model}: {what}: restore Redis from a copy, or `perceptron reset -m {model} --yes`")
