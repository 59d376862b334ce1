"""Candidates: each learns what a model of its own would learn, and none of them changes the model."""

import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from service.errors import SnapshotDamaged
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import CandidateOptions, Options
from service.learning.records import Records
from service.snapshots import blobs, codec, head, restore
from service.snapshots.rollback import restore_version as restored_version
from tests.checks import learner_of, restored, state_digest
from tests.conftest import event
from tests.saving import keeper, learn, save, simulated_store

MODEL = Identity(eta=0.5, average=True)


def candidate_options(identity: Identity, serve: Any = "last", **others: Any) -> CandidateOptions:
    return CandidateOptions(msgspec.structs.replace(identity, **others), serve)


def wanted(identity: Identity = MODEL, serve: str = "last") -> Options:
    """Three next to the model: other rates, rules, margins, averages, tie and start."""
    return Options(window=50, serve=serve, candidates={
        "wide": candidate_options(identity, "average", margin=(0.5, 3.0), average="recent", half_life=7),
        "logistic": candidate_options(identity, rule="logistic-delta", eta=0.1, slope=1.0, average=False),
        "odd": candidate_options(identity, eta=0.3, tie="positive", start="random:7"),
    })  # fmt: skip


def log(seed: int, size: int = 300) -> list[bytes]:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(12)]
    raws = []
    for _ in range(size):
        x = {name: rng.choice((0.5, -1.0, 2.0, 0.1, True)) for name in rng.sample(names, rng.randint(0, 5))}
        raws.append(event(x, rng.choice((1, -1))) if rng.random() > 0.1 else b"no event")
    return raws


def applied(learner: Learner, records: list[bytes], rng: random.Random | None = None) -> Learner:
    """The learner after all records: one slice, or random slices with restores between some of them."""
    at = begin = learner.next[0]
    while at < begin + len(records):
        size = rng.randint(1, 40) if rng else len(records)
        at += learner.apply(0, Records.of(at, records[at - begin : at - begin + size])).consumed
        if rng and rng.random() < 0.3:
            learner = restored(learner, learner.observations.options)
    return learner


@pytest.mark.parametrize(("seed", "scale"), [(0, "none"), (1, "standard")])
def test_each_is_a_model_of_its_own_and_the_model_what_it_is_without(seed: int, scale: Any) -> None:
    identity = msgspec.structs.replace(MODEL, scale=scale)
    records, options = log(seed), wanted(identity)
    whole = applied(learner_of(identity, (), options), records)
    cut = applied(learner_of(identity, (), options), records, random.Random(seed))
    assert state_digest(cut) == state_digest(whole)
    assert [cut.observations.recent.pairs, cut.counts] == [whole.observations.recent.pairs, whole.counts]
    plain = applied(learner_of(identity, (), Options(window=50)), records)
    assert plain.counts == whole.counts
    assert plain.weights.tobytes() == whole.weights.tobytes()
    seen, wrong = Counter[int](), Counter[str]()
    for label in (json.loads(raw)["label"] for raw in records if raw != b"no event"):
        wrong["baseline"] += (label == 1) != (seen[1] > seen[-1])
        seen[label] += 1
    wrong.update(last=whole.counts.wrong_predictions, average=whole.observations.recent.averaged.wrong)
    for name, one in cut.candidates.items():
        alone = applied(learner_of(one.identity, (), Options(window=50, serve=options.candidates[name].serve)), records)
        for array in one.arrays:
            assert one.arrays[array].tobytes() == alone.arrays[array].tobytes(), (name, array)
        assert one.counts == msgspec.structs.replace(alone.counts, rejected={})
        assert one.served.tobytes() == alone.served.tobytes()
        assert one.observations.recent.accuracy == alone.observations.recent.accuracy
        assert one.observations.squared_steps == alone.observations.squared_steps
        wrong[name] = one.observations.recent.averaged.wrong if one.averaged else one.counts.wrong_predictions
    for pair in cut.observations.recent.pairs:  # each on the same events, of the weights that answer
        assert pair.first_only - pair.second_only == wrong[pair.second] - wrong[pair.first]
        assert pair.events == cut.counts.events
    assert {name for pair in cut.observations.recent.pairs for name in (pair.first, pair.second)} == wrong.keys()


def test_they_begin_go_on_and_are_dropped_as_settings_say() -> None:
    records = log(5)
    learner = applied(learner_of(MODEL, (), wanted(serve="wide")), records[:50])
    assert learner.answering == "wide"
    fewer = wanted()._replace(serve="odd", candidates={
        "odd": wanted().candidates["odd"], "wide": candidate_options(MODEL, margin=(0.0, 1.0)),
        "new": candidate_options(MODEL, rule="half-step"),
    })  # fmt: skip
    kept = learner.candidates["odd"].weights.tobytes()
    learner = restored(learner, fewer)
    assert learner.answering == "odd"
    assert learner.reconcile() == (["new", "wide"], ["logistic", "wide"])
    assert learner.candidates["odd"].weights.tobytes() == kept
    assert {name: one.since for name, one in learner.candidates.items()} == {
        "new": {0: 50}, "odd": {0: 0}, "wide": {0: 50},
    }  # fmt: skip
    assert learner.candidates["wide"].counts.events == 0
    compared = {name for pair in learner.observations.recent.pairs for name in (pair.first, pair.second)}
    assert compared == {"average", "baseline", "last", "odd"}, "a candidate that begins from scratch has no pairs"
    assert restored(learner, wanted(serve="absent")).answering is None
    learner.begin({1: 7})
    assert learner.candidates["odd"].since == {0: 0, 1: 7}


def test_one_that_diverges_stops_alone_and_where_is_state() -> None:
    options = wanted()._replace(serve="wild")
    options = options._replace(
        candidates={**options.candidates, "wild": candidate_options(MODEL, eta=3e14, average="recent", half_life=3)}
    )
    records = log(0)
    whole = applied(learner_of(MODEL, (), options), records)
    cut = applied(learner_of(MODEL, (), options), records, random.Random(0))
    assert state_digest(cut) == state_digest(whole)
    alone = learner_of(options.candidates["wild"].identity)
    outcome = alone.apply(0, Records.of(0, records))
    wild = cut.candidates["wild"]
    assert alone.diverged, "the stream must do so"
    assert (wild.diverged, wild.diverged_at) == (alone.diverged, (0, outcome.consumed))
    assert wild.counts == msgspec.structs.replace(alone.counts, rejected={})
    known = len(alone.columns)
    assert wild.weights[:known].tobytes() == alone.weights.tobytes()
    assert not wild.weights[known:].any()
    assert (cut.diverged, cut.answering) == (None, None)
    assert cut.counts == applied(learner_of(MODEL, (), Options()), records).counts
    assert all("wild" not in (pair.first, pair.second) for pair in cut.observations.recent.pairs)


def test_the_one_that_answers_is_exported_as_the_model_that_it_would_be() -> None:
    records, options = log(4), wanted(serve="wide")
    learner = applied(learner_of(MODEL, (), options), records)
    wide, promoted = learner.candidates["wide"], learner.promoted()
    alone = applied(learner_of(wide.identity, (), Options(window=50, serve="average")), records)
    assert (promoted.identity, promoted.served.tobytes()) == (alone.identity, alone.served.tobytes())
    assert promoted.score({"n1": 2.0, "n2": True}) == alone.score({"n1": 2.0, "n2": True})
    assert learner.score({"n1": 2.0}, wide) == promoted.score({"n1": 2.0}) != learner.score({"n1": 2.0})
    assert promoted.promoted() is promoted
    assert applied(learner_of(MODEL, (), wanted()), records).promoted().identity == MODEL


async def test_a_kept_version_is_gone_back_to_with_its_candidates() -> None:
    """In a partition that came later each candidate begins where that partition began."""
    (store, redis), options = (
        simulated_store(),
        Options(candidates={"wide": candidate_options(Identity(), margin=(2.0, 2.0))}),
    )
    ours, learner = keeper(store, "m", options=options), learner_of(Identity(), (), options)
    learn(learner, "a", "b")
    first = await save(ours, learner)
    weights = learner.candidates["wide"].weights.tolist()
    learner.begin({1: 5})
    learn(learner, "c")
    second = await save(ours, learner)
    blobs_there = {name[2:]: blob for name, blob in redis.state.items() if name[:2] == "b:"}
    stored, _ = restore.restore_learner(first.head, blobs_there, options)
    new = restored_version(first.head, stored, second.head, second.digest, {}, 7.0)
    data = codec.encode_head(new)
    found = restore.restore_learner(codec.decode_head(data, blobs.digest(data)), blobs_there, options)[1]()
    assert found.candidates["wide"].since == {0: 0, 1: 5}
    assert found.candidates["wide"].weights.tolist() == weights
    assert found.reconcile() == ([], [])


def test_a_state_that_does_not_match_its_digest_is_damaged() -> None:
    content = head.snapshot_content(learner_of(Identity(), [event({"a": 1.0}, 1)]))
    changed = msgspec.structs.replace(content.head, state_digest="0" * 64)
    with pytest.raises(SnapshotDamaged):
        restore.restore_learner(changed, content.blobs, Options())
