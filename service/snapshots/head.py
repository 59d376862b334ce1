"""The head of a snapshot: small JSON that names everything the state consists of, with its digests.

`state_digest` is the SHA-256 of the canonical state: sorted JSON of identity, covered ranges, counts, and the
digests of names and arrays in fixed cuts. What depends on a clock or on how the state was reached (version,
times, runs, windows) is beside it. A head is named by the SHA-256 of its own bytes, parent included.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from service.errors import SnapshotDamaged
from service.learning.bounds import Stretch, Sums
from service.learning.classifier import Counts
from service.learning.confidence import Paired
from service.learning.identity import Identity
from service.learning.learner import Learner, with_hole
from service.learning.options import Options
from service.learning.recent import FLAGS, Averaged, Margins, Recent
from service.snapshots import blobs
from service.snapshots.blobs import Encoded, EncodedNames

SCHEMA = 1
"""Of heads. A release refuses one that is newer."""


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last record applied of a partition, so that a recreated topic is recognised."""

    offset: int
    timestamp: int
    crc32: int
    """Of the key's bytes, then the value's."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a partition goes on."""

    offset: int
    fingerprint: Fingerprint | None = None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where records come from: another topic may have the same name."""

    cluster: str = ""
    topic_id: str = ""
    """Empty where Kafka gives no ids."""

    def elsewhere(self, now: "Source") -> bool:
        """Whether this is another cluster than the one `now`."""
        return bool(self.cluster and now.cluster and self.cluster != now.cluster)

    def recreated(self, now: "Source") -> bool:
        """Whether this is another topic than the one `now`."""
        return bool(self.topic_id and now.topic_id and self.topic_id != now.topic_id)


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who wrote a head. Empty in one that a command wrote, or a release that did not say."""

    group: str = ""
    """The consumer group."""
    process: str = ""
    """HOST:PID."""


NOBODY = Writer()


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array as base blobs, and deltas that are written over them in order."""

    base: list[str]
    deltas: list[str] = []


class Observations(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Kept with the state, not part of it."""

    squared_steps: float
    """The start's squared norm, and what the updates can have added to it: see `watch`."""
    recent_events: int
    recent_wrong: str
    """One bit for each event of the recent window, oldest first, packed, hexadecimal; so are the other two."""
    margins: Margins | None
    stretch: Sums | None
    """Of the mistake bound; its reference array is in `reference`."""
    recent_positive: str = ""
    recent_averaged: str = ""
    """Empty where they are not known of each event of the window: see `recent.FLAGS`."""
    averaged: Averaged = Averaged()
    pairs: list[Paired] = []
    """Who predicted which events better: see `learning.confidence`."""
    averaged_missed: int | list[int] | None = None
    """See `Recent.missed`; None too where no average is kept."""
    recent_truth: str = ""
    """The place of each event's label as little-endian u2, hexadecimal; of three labels and more alone."""
    diverged: str | None = None
    """Why nothing is learned on top of this, and it does not answer; see `Learner.diverged`."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version kept for rollback."""

    version: int
    saved_at: float
    digest: str = ""
    """Of its head; '' in that head itself, which cannot hold its own."""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module's first lines. `saved_at` is seconds since 1970; partitions are decimal strings.

    A member that is added has a default, so that older heads can be read; and older releases refuse a head that has it.
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
    writer: Writer = NOBODY
    next: dict[str, Position]
    covered: dict[str, list[tuple[int, int]]]
    counts: Counts
    observations: Observations
    runs: blobs.Runs
    """Since the last kept version: the last of them; those before are in `run_blobs`."""
    run_blobs: list[str]
    kept: list[Kept]
    columns: int
    arrays: dict[str, Array]
    reference: Array | None
    names: list[str]

    @property
    def refs(self) -> list[str]:
        """The digests of all blobs that this snapshot consists of."""
        arrays = [*self.arrays.values(), *([self.reference] if self.reference else [])]
        return [*self.names, *self.run_blobs, *(d for a in arrays for d in (*a.base, *a.deltas))]


class Stored(NamedTuple):
    """What the store has of a model."""

    arrays: dict[str, Encoded]
    reference: Encoded | None
    names: EncodedNames
    runs: list[str]


NOTHING = Stored({}, None, EncodedNames(0, []), [])


class Content(NamedTuple):
    """A learner's state as a head is to refer to it, and the blobs that the store lacks."""

    state_digest: str
    stored: Stored
    runs: blobs.Runs
    blobs: dict[str, bytes]

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays as the head names them."""
        return {name: _named(array) for name, array in self.stored.arrays.items()}

    @property
    def reference(self) -> Array | None:
        """The bound's reference as the head names it."""
        return _named(self.stored.reference) if self.stored.reference else None


def _named(array: Encoded) -> Array:
    return Array(array.base, [d for d, _ in array.deltas])


def restored(
    version: Head, stored: Stored, current: Head, digest: str, resume_at: Mapping[int, int], now: float
) -> Head:
    """A kept version as the child of the current head, which has this digest; `stored` is the version's, verified.

    It goes on where that version did, or at `resume_at`, behind a hole. A partition that came later begins where it
    began. The source is that which was learned from last; fingerprints are those of the last records applied.
    """
    covered = {p: list(ranges) for p, ranges in version.covered.items()}
    for partition, ranges in current.covered.items():
        covered.setdefault(partition, [(ranges[0][0], ranges[0][0])])
    for number, offset in resume_at.items():
        covered[str(number)] = with_hole(covered[str(number)], offset)
    covered = dict(sorted(covered.items(), key=lambda item: int(item[0])))
    prints = {p: position.fingerprint for p, position in version.next.items()}
    return replace(
        version,
        version=current.version + 1,
        parent=digest,
        saved_at=now,
        state_digest=_digest_of(version.identity, covered, version.counts, version.columns, stored),
        order="log" if len(covered) == 1 else "arrival",
        source=current.source,
        writer=NOBODY,
        next={p: Position(ranges[-1][1], prints.get(p)) for p, ranges in covered.items()},
        covered=covered,
        # Whether it diverges again is seen at the next event, which may be another.
        observations=replace(version.observations, diverged=None),
        # A head has the runs since its last kept version, so that `verify` can begin there. The last version kept so
        # far may belong to the history that this rollback leaves, and no run leads on from it. So this head is kept
        # itself, and begins without runs. All versions kept so far stay, the later ones too, since one of them is the
        # way to undo this rollback. That may be one more than `keep` allows; the next save lets one go.
        runs=[],
        run_blobs=[],
        kept=[*(k if k.digest else replace(k, digest=digest) for k in current.kept), Kept(current.version + 1, now)],
    )


def content(learner: Learner, before: Stored = NOTHING) -> Content:
    """Cut a learner's state into blobs where the store has `before`, and digest it.

    Heavy for many columns, so it may run in a thread; the learner must not change meanwhile.
    """
    arrays, new = dict[str, Encoded](), dict[str, bytes]()
    for name, array in learner.arrays.items():
        arrays[name], more = blobs.encode(array, before.arrays.get(name, blobs.NOTHING))
        new |= more
    reference: Encoded | None = None
    if learner.watch.stretch is not None:
        # One that is the weights of a kept version is in the store already, under the same names.
        own = before.reference or arrays.get("w", blobs.NOTHING)
        reference, more = blobs.encode(learner.watch.stretch.reference.ravel(), own)
        new |= more
    names, more = blobs.encode_names(learner.columns.names, before.names)
    new |= more
    runs, rest, more = blobs.encode_runs(learner.runs, before.runs)
    new |= more
    stored = Stored(arrays, reference, names, runs)
    state = (learner.identity, covered_as_json(learner), learner.counts, len(learner.columns), stored)
    return Content(_digest_of(*state), stored, rest, new)


def _digest_of(
    identity: Identity, covered: dict[str, list[tuple[int, int]]], counts: Counts, columns: int, stored: Stored
) -> str:
    """SHA-256 of the canonical state."""
    state = {
        "identity": identity,
        "covered": covered,
        "counts": counts,
        "columns": columns,
        "arrays": {name: array.blocks for name, array in stored.arrays.items()},
        "names": stored.names.blobs,
    }
    return blobs.digest(msgspec.json.encode(msgspec.to_builtins(state), order="sorted"))


def covered_as_json(learner: Learner) -> dict[str, list[tuple[int, int]]]:
    """Covered ranges with partitions as decimal strings, in ascending order."""
    return {str(partition): list(ranges) for partition, ranges in sorted(learner.covered.items())}


def observations(learner: Learner) -> Observations:
    """What is kept beside the state."""
    watch = learner.watch
    recent, sums = watch.recent, watch.stretch.stored() if watch.stretch else None
    bits = [np.packbits(recent.flag(name)).tobytes().hex() for name in FLAGS]
    return Observations(
        squared_steps=watch.squared_steps,
        recent_events=len(recent.flag("wrong")),
        recent_wrong=bits[0],
        margins=recent.margins,
        stretch=sums,
        recent_positive=bits[1],
        recent_averaged=bits[2],
        averaged=recent.averaged,
        pairs=recent.pairs,
        averaged_missed=deepcopy(recent.missed) if learner.identity.average else None,
        recent_truth=recent.truth.astype("<u2").tobytes().hex(),
        diverged=learner.diverged,
    )


def missing(head: Head, before: Stored = NOTHING) -> list[str]:
    """The blobs to fetch for a reader who has `before`; all where that is nothing."""
    arrays = ((a, before.arrays.get(name, blobs.NOTHING)) for name, a in head.arrays.items())
    parts = [blobs.missing(a.base, a.deltas, held) for a, held in arrays]
    if head.reference is not None:
        parts.append(blobs.missing(head.reference.base, head.reference.deltas, _like(head.reference, before)))
    runs = blobs.missing_runs(head.run_blobs, before.runs)
    wanted = (*blobs.missing_names(head.names, before.names), *runs, *(d for part in parts for d in part))
    return list(dict.fromkeys(wanted))


def _like(reference: Array, before: Stored) -> Encoded:
    """What a reader has of a reference: the one before, or the weights, since those of a kept version become one.

    No digest is over a reference, so only what it plainly goes on from counts.
    """
    for held in (before.reference, before.arrays.get("w")):
        if held and held.base == reference.base:
            deltas = [name for name, _ in held.deltas]
            if deltas == reference.deltas[: len(deltas)]:
                return held
    return blobs.NOTHING


def decode(
    head: Head, found: Mapping[str, bytes], options: Options, before: tuple[Learner, Stored] | None = None
) -> tuple[Stored, Callable[[], Learner]]:
    """The learner that a head describes, from the verified blobs that `missing` names; raises SnapshotDamaged.

    Where the reader has a learner `before`, that one is brought up to date, for the price of what changed. This is the
    heavy part and changes nothing; what it returns finishes the work, quickly, in one step of whoever shares it.
    """
    learner, stored = before or (Learner(head.identity, options=options), NOTHING)
    if head.identity != learner.identity:
        raise SnapshotDamaged("the identity is not that of the snapshot before")
    arrays = {
        name: blobs.decode(a.base, a.deltas, found, head.columns, stored.arrays.get(name, blobs.NOTHING))
        for name, a in head.arrays.items()
    }
    reference: Encoded | None = None
    if head.reference is not None:
        parts = head.reference.base, head.reference.deltas
        size = head.columns * (head.identity.classes if head.identity.multiclass else 1)
        reference = blobs.decode(*parts, found, size, _like(head.reference, stored))
    names = blobs.decode_names(head.names, found, stored.names, learner.columns.names)
    count = stored.names.known + len(names)
    if head.columns != (count + 1 if head.identity.features == "named" else len(learner.columns)):
        raise SnapshotDamaged(f"{count} features are named, which do not make the {head.columns} columns of the head")
    decoded = Stored(arrays, reference, EncodedNames(count, head.names), head.run_blobs)
    if _digest_of(head.identity, head.covered, head.counts, head.columns, decoded) != head.state_digest:
        raise SnapshotDamaged(f"version {head.version}: the state does not match its digest")
    seen = head.observations
    packed = zip(FLAGS, (seen.recent_wrong, seen.recent_positive, seen.recent_averaged), strict=True)
    flags = {
        name: np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8), count=seen.recent_events).astype(bool)
        for name, bits in packed
        if bits
    }
    truth = np.frombuffer(bytes.fromhex(seen.recent_truth), "<u2").astype(np.uint16)
    observed = seen.margins, seen.averaged, seen.pairs, seen.averaged_missed, head.identity.classes, truth
    recent = Recent(options.window, flags, *observed)
    # A learner's change, a head's do not.
    own, counts = {name: array.values.copy() for name, array in arrays.items()}, head.counts.copy()
    sums = deepcopy(head.observations.stretch)
    stretch = None
    if reference is not None and sums is not None:
        values = reference.values.copy()
        stretch = Stretch(values.reshape(head.columns, -1) if head.identity.multiclass else values, sums)
    runs = blobs.decode_runs(head.run_blobs, head.runs, found, stored.runs, learner.runs)
    covered = {int(partition): list(ranges) for partition, ranges in head.covered.items()}
    if before is None:
        learner.columns.extend(names)
        names = []

    def finish() -> Learner:
        learner.columns.extend(names)
        learner.load(own, covered, counts, seen.squared_steps, recent, stretch, seen.diverged)
        learner.runs = runs
        return learner

    return decoded, finish
