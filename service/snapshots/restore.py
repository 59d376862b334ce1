"""A learner from a head and its blobs."""

from collections.abc import Callable
from copy import deepcopy
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import SnapshotDamaged
from service.learning.classifier import Candidate, state_of, stored_as
from service.learning.evaluation.given_answers import GivenAnswers, Tally
from service.learning.evaluation.mistake_bound import BoundSegment
from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.identity import Identity
from service.learning.kernel.kernel import squared_norm
from service.learning.kernel.scaling import StandardScaler
from service.learning.learner import Learner
from service.learning.options import BEST, Options
from service.snapshots import blobs
from service.snapshots.blobs import Encoded
from service.snapshots.content import NOTHING_STORED, Stored, digest_of
from service.snapshots.head import Array, Head, StoredObservations


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
    recent.restored_margins, recent.averaged, recent.pairs = figures.margins, figures.averaged, list(figures.pairs)
    recent.restored_ranking, recent.previous = figures.ranking, figures.previous
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
        learner.watch.figures = figures.features
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
