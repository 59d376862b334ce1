"""A learner's state as a head and blobs, and a learner from these.

`state_digest` is the SHA-256 of the canonical state: sorted JSON of identity, amendments, covered ranges,
`lists_since`, counts, join, who answers, and the digests of names and arrays in fixed cuts.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.errors import SnapshotDamaged
from service.learning.classifier import Candidate, Classifier, state_of, stored_as
from service.learning.evaluation.mistake_bound import BoundSegment
from service.learning.evaluation.prequential import GivenAnswers, PrequentialWindow, Tally
from service.learning.identity import Identity
from service.learning.kernel.kernel import squared_norm
from service.learning.kernel.scaling import StandardScaler
from service.learning.learner import Learner
from service.learning.options import BEST, Options
from service.snapshots import blobs
from service.snapshots.blobs import Encoded
from service.snapshots.head import Array, CandidateState, Head, StoredObservations, StoredTally


class Stored(NamedTuple):
    """The parts of a model that the store has."""

    arrays: dict[str, Encoded]
    reference: Encoded | None
    names: list[str]
    name_count: int
    runs: list[str]


NOTHING_STORED = Stored({}, None, [], 0, [])


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
    if learner.main.observations.bound_segment is not None:
        # A reference that is the weights of a kept version is in the store already, under the same names.
        like = before.reference or arrays.get("w", blobs.NO_ARRAY)
        values = learner.main.observations.bound_segment.reference[: len(learner.columns)].ravel()
        reference, more = blobs.encode_array(values, like)
        new |= more
    names, new_names = blobs.encode_name_blobs(learner.columns.names, before.names, before.name_count)
    runs, rest, new_runs = blobs.encode_runs(learner.runs, before.runs)
    stored = Stored(arrays, reference, names, len(learner.columns.names), runs)
    answers = {
        name: StoredTally(tally.events, tally.right, len(tally.last.values), _packed(tally.last.values))
        for name, tally in learner.answers.tallies.items()
    }
    candidates = {
        name: CandidateState(c.identity, c.since.copy(), c.counts.copy(), c.diverged_at, observations(c))
        for name, c in learner.candidates.items()
    }
    gaps, jumps = learner.gaps.copy(), learner.jumps.copy()
    head = Head(
        identity=learner.identity,
        order="log" if len(learner.covered) <= 1 else "arrival",
        covered={partition: list(ranges) for partition, ranges in learner.covered.items()},
        counts=learner.main.counts.copy(),
        observations=replace(
            observations(learner.main), gaps=gaps, answers=answers, jumps=jumps, features=learner.watch.figures
        ),
        runs=rest,
        run_blobs=runs,
        columns=len(learner.columns),
        arrays={name: _named(array) for name, array in arrays.items()},
        reference=_named(reference) if reference else None,
        names=names,
        candidates=candidates or msgspec.UNSET,
        amendments=list(learner.amendments) or msgspec.UNSET,
        lists_since=msgspec.UNSET if learner.lists_since == learner.next else learner.lists_since.copy(),
        join=learner.join.state(learner.next) if learner.join else msgspec.UNSET,
        best=deepcopy(learner.best) if learner.best else msgspec.UNSET,
    )
    return Content(replace(head, state_digest=digest_of(head, stored)), stored, new | new_names | new_runs)


def _named(array: Encoded) -> Array:
    return Array(array.base, [digest for digest, _ in array.deltas])


def _packed(flags: NDArray[np.bool_]) -> str:
    return np.packbits(flags).tobytes().hex()


def digest_of(head: Head, stored: Stored) -> str:
    """SHA-256 of the canonical state, which this head describes and `stored` has the blocks of."""
    state = {name: getattr(head, name) for name in ("identity", "covered", "counts", "columns", "names")}
    state["arrays"] = {name: array.blocks for name, array in stored.arrays.items()}
    if head.candidates:
        members = ("identity", "since", "counts", "diverged_at")
        state["candidates"] = {name: {m: getattr(c, m) for m in members} for name, c in head.candidates.items()}
    state |= {name: value for name in ("amendments", "join", "lists_since", "best") if (value := getattr(head, name))}
    plain = msgspec.to_builtins(state, enc_hook=attrgetter("as_json"), str_keys=True)
    return blobs.digest(msgspec.json.encode(plain, order="sorted"))


def observations(classifier: Classifier) -> StoredObservations:
    """The observations of a classifier, as a head stores them."""
    watch = classifier.observations
    recent, is_binary = watch.recent, watch.recent.classes == 2
    truth, missed = recent.truth.values, recent.missed if classifier.identity.average else None
    return StoredObservations(
        squared_steps=watch.squared_steps,
        recent_events=len(truth),
        recent_wrong=_packed(recent.wrong.values),
        margins=recent.margins,
        bound_segment=copy(watch.bound_segment.sums) if watch.bound_segment else None,
        recent_positive=_packed(truth == 1) if is_binary else "",
        recent_averaged=_packed(recent.averaged_wrong.values),
        averaged=recent.averaged,
        pairs=recent.pairs,
        averaged_missed=missed and (missed[1] if is_binary else missed.copy()),
        recent_truth="" if is_binary else truth.astype("<u2").tobytes().hex(),
        diverged=classifier.diverged,
        previous=recent.previous,
        ranking=watch.ranking,
        recent_answered=_packed(recent.answered_wrong.values),
        recent_served_events=len(recent.served_wrong.values),
        recent_served=_packed(recent.served_wrong.values),
        served=recent.served.tolist() if recent.served.any() else [],
    )


def missing_blobs(head: Head, before: Stored = NOTHING_STORED) -> list[str]:
    """The blobs to fetch for a reader who has `before`; all of them if that is nothing."""
    parts = [blobs.later_blobs(head.names, before.names), blobs.later_blobs(head.run_blobs, before.runs)]
    for name, array in head.arrays.items():
        parts.append(blobs.missing_array_blobs(array.base, array.deltas, before.arrays.get(name, blobs.NO_ARRAY)))
    if r := head.reference:
        parts.append(blobs.missing_array_blobs(r.base, r.deltas, _like(r, before)))
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _like(reference: Array, before: Stored) -> Encoded:
    """The array of a reader that this reference continues: the previous reference, or the weights it was taken from.

    No digest covers a reference, so its deltas must begin with all deltas of that array.
    """
    for held in (before.reference, before.arrays.get("w")):
        if held and (held.base, blobs.common_deltas(reference.deltas, held)) == (reference.base, len(held.deltas)):
            return held
    return blobs.NO_ARRAY


def _flags(packed: str, count: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8))[:count].astype(bool)


def _recent(figures: StoredObservations, options: Options, classes: int) -> PrequentialWindow:
    packed = figures.recent_positive, figures.recent_wrong, figures.recent_averaged, figures.recent_answered
    positive, wrong, averaged_wrong, answered = (_flags(text, figures.recent_events) for text in packed)
    truth = positive if classes == 2 else np.frombuffer(bytes.fromhex(figures.recent_truth), "<u2")
    recent = PrequentialWindow(options.window, classes, truth, wrong, averaged_wrong)
    recent.restored_margins, recent.restored_ranking = figures.margins, figures.ranking
    recent.averaged = figures.averaged
    recent.restore_comparisons(list(figures.pairs), figures.previous)
    if options.positive_above is not None:  # if it is new, the sign decided about earlier answers
        by_sign = averaged_wrong if options.serve == "average" else wrong
        recent.answered_wrong.add(answered if len(answered) else by_sign)
    if options.serve == BEST:
        recent.served_wrong.add(_flags(figures.recent_served, figures.recent_served_events))
        recent.served += np.array(figures.served or 0)
    missed = figures.averaged_missed
    recent.missed = [figures.averaged.wrong - missed, missed] if isinstance(missed, int) else missed and missed.copy()
    return recent


def _answers(figures: StoredObservations, options: Options, classes: int) -> GivenAnswers:
    answers = GivenAnswers(options.window, classes)
    for name, tally in figures.answers.items():
        last = _flags(tally.last_right, tally.last)
        answers.tallies[name] = Tally(options.window, tally.events, tally.right, last)
    return answers


def restore_learner(
    head: Head, parts: blobs.Blobs, options: Options, before: tuple[Learner, Stored] | None = None
) -> tuple[Stored, Callable[[], Learner]]:
    """The learner that a head describes, from the blobs that `missing_blobs` names; raises SnapshotDamaged.

    A learner `before` is brought up to date, at the cost of what changed. This function does the heavy part and changes
    nothing. The function that it returns finishes the work quickly, in one step.
    """
    learner, stored = before or (Learner(head.identity, options=options), NOTHING_STORED)
    decoded, names = _decode(head, parts, learner, stored)
    figures, classes, segment = head.observations, head.identity.classes, None
    main = _weights(head.identity, decoded)
    candidates = {name: _weights(saved.identity, decoded, name) for name, saved in head.candidate_states.items()}
    sums = [decoded.arrays[name].values for name in head.identity.sums]
    scaler = StandardScaler.from_sums(head.identity, sums) if sums else None
    if decoded.reference is not None and figures.bound_segment is not None:
        vector = decoded.reference.values
        shaped = vector.reshape(head.columns, -1) if head.identity.multiclass else vector
        segment = BoundSegment(shaped, deepcopy(figures.bound_segment))
    runs = blobs.decode_runs(head.run_blobs, head.runs, parts, stored.runs, learner.runs)
    if before is None:
        learner.columns.extend(names)
        names = []

    def finish() -> Learner:
        """Put the parts into the learner, which lacks these names."""
        learner.columns.extend(names)
        learner.candidates = {}
        for name, saved in head.candidate_states.items():
            candidate = Candidate(saved.identity, learner.columns, learner.options.candidate_options(name), saved.since)
            recent = _recent(saved.observations, candidate.observations.options, classes)
            candidate.observations.restore(recent, saved.observations.squared_steps, None)
            candidate.restore(*candidates[name], saved.counts.copy())
            if saved.diverged_at is not None:
                candidate.stop(*saved.diverged_at)
            learner.candidates[name] = candidate
        learner.scaler, learner.runs = scaler, runs
        learner.gaps, learner.jumps = figures.gaps.copy(), figures.jumps.copy()
        learner.watch.restore(figures.features)
        learner.answers = _answers(figures, learner.options, classes)
        learner.amendments = list(head.amendments or ())
        learner.covered = {partition: list(ranges) for partition, ranges in head.covered.items()}
        learner.lists_since = learner.next if head.lists_since is msgspec.UNSET else dict(head.lists_since)
        if learner.join and head.join and head.counts.join:
            learner.restore_join(head.join, head.counts.join)
        learner.main.observations.restore(_recent(figures, learner.options, classes), figures.squared_steps, segment)
        learner.main.restore(*main, head.counts.copy(), figures.diverged)
        learner.best = deepcopy(head.best) if head.best else None
        learner.use_best()
        learner.make_room(len(learner.columns))
        return learner

    return decoded, finish


def _decode(head: Head, parts: blobs.Blobs, learner: Learner, stored: Stored) -> tuple[Stored, list[str]]:
    """The arrays of a head, and the names that the learner lacks, verified; raises SnapshotDamaged."""
    for name, blob in parts.items():
        if blobs.digest(blob) != name:
            raise SnapshotDamaged(f"blob {name[:12]} of version {head.version} does not match its digest")
    if head.identity != learner.identity:
        raise SnapshotDamaged("the identity differs from the one of the snapshot before")
    arrays = {
        name: blobs.decode_array(a.base, a.deltas, parts, head.columns, stored.arrays.get(name, blobs.NO_ARRAY))
        for name, a in head.arrays.items()
    }
    reference: Encoded | None = None
    if r := head.reference:
        size = head.columns * (head.identity.classes if head.identity.multiclass else 1)
        whole = blobs.decode_array(r.base, r.deltas, parts, size, _like(r, stored))
        reference = whole._replace(values=whole.values.astype(np.float32))
    names = blobs.decode_name_blobs(head.names, parts, stored.names, learner.columns.names)
    count = stored.name_count + len(names)
    if head.columns != (count + 1 if head.identity.features == "named" else len(learner.columns)):
        raise SnapshotDamaged(f"{count} features are named, which do not make the {head.columns} columns of the head")
    decoded = Stored(arrays, reference, head.names, count, head.run_blobs)
    if digest_of(head, decoded) != head.state_digest:
        raise SnapshotDamaged(f"version {head.version}: the state does not match its digest")
    return decoded, names


def _weights(identity: Identity, decoded: Stored, candidate: str = "") -> tuple[NDArray[np.float64], float]:
    """The weights of the model, or of one candidate, as the kernel uses them, and ‖w‖²."""
    stored = {name: stored_as(candidate, name) if candidate else name for name in identity.weight_arrays}
    state = state_of(identity, {name: decoded.arrays[array].values for name, array in stored.items()})
    return state, squared_norm(state[:, 0])
