"""A learner's state as a head and blobs.

`state_digest` is the SHA-256 of the canonical state: sorted JSON of identity, amendments, covered ranges,
`lists_since`, counts, join, who answers, and the digests of names and arrays in fixed cuts.
"""

from copy import copy, deepcopy
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from service.learning.classifier import Candidate, Classifier
from service.learning.evaluation.given_answers import Tally
from service.learning.learner import Learner
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
    answers = {name: _tally(tally) for name, tally in learner.answers.tallies.items()}
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
        candidates={name: _candidate(candidate) for name, candidate in learner.candidates.items()} or msgspec.UNSET,
        amendments=list(learner.amendments) or msgspec.UNSET,
        lists_since=msgspec.UNSET if learner.lists_since == learner.next else learner.lists_since.copy(),
        join=learner.join.state(learner.next) if learner.join else msgspec.UNSET,
        best=deepcopy(learner.best) if learner.best else msgspec.UNSET,
    )
    return Content(replace(head, state_digest=digest_of(head, stored)), stored, new | new_names | new_runs)


def _named(array: Encoded) -> Array:
    return Array(array.base, [digest for digest, _ in array.deltas])


def _tally(tally: Tally) -> StoredTally:
    last = tally.last.values
    return StoredTally(tally.events, tally.right, len(last), np.packbits(last).tobytes().hex())


def _candidate(candidate: Candidate) -> CandidateState:
    """A candidate as the head has it."""
    since, counts = candidate.since.copy(), candidate.counts.copy()
    return CandidateState(candidate.identity, since, counts, candidate.diverged_at, observations(candidate))


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
    recent, sums = watch.recent, copy(watch.bound_segment.sums) if watch.bound_segment else None
    is_binary, truth = recent.classes == 2, recent.truth.values
    flags = recent.wrong, recent.averaged_wrong, recent.answered_wrong, recent.served_wrong
    positive = np.packbits(truth == 1 if is_binary else truth[:0]).tobytes().hex()
    wrong, averaged_wrong, answered_wrong, served_wrong = (np.packbits(each.values).tobytes().hex() for each in flags)
    missed = recent.missed if classifier.identity.average else None
    return StoredObservations(
        squared_steps=watch.squared_steps,
        recent_events=len(truth),
        recent_wrong=wrong,
        margins=recent.margins,
        bound_segment=sums,
        recent_positive=positive,
        recent_averaged=averaged_wrong,
        averaged=recent.averaged,
        pairs=recent.pairs,
        averaged_missed=missed and (missed[1] if is_binary else missed.copy()),
        recent_truth="" if is_binary else truth.astype("<u2").tobytes().hex(),
        diverged=classifier.diverged,
        previous=recent.previous,
        ranking=watch.ranking,
        recent_answered=answered_wrong,
        recent_served_events=len(recent.served_wrong.values),
        recent_served=served_wrong,
        served=recent.served.tolist() if recent.served.any() else [],
    )
