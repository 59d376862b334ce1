"""Candidates: each learns what a model of its own would learn, and no candidate changes the model."""

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
from service.snapshots import blobs
from service.snapshots.content import restore_learner, snapshot_content
from service.snapshots.head import Head
from service.snapshots.rollback import restore_version as restored_version
from tests.checks import learner_of, restored, state_digest
from tests.conftest import event
from tests.partitions import P0, P1
from tests.saving import keeper, learn, save, simulated_store

MODEL = Identity(eta=0.5, average=True)


def candidate_options(identity: Identity, serve: Any = "last", **fields: Any) -> CandidateOptions:
    return CandidateOptions(msgspec.structs.replace(identity, **fields), serve)


def three_candidates(identity: Identity = MODEL, serve: str = "last") -> Options:
    """Options with three candidates: other rates, rules, margins, averages, tie and start."""
    return Options(window=50, serve=serve, candidates={
        "wide": candidate_options(identity, "average", margin=(0.5, 3.0), average="recent", half_life=7),
        "logistic": candidate_options(identity, rule="logistic-delta", eta=0.1, slope=1.0, average=False),
        "odd": candidate_options(identity, eta=0.3, tie="positive", start="random:7"),
    })  # fmt: skip


def random_records(seed: int, size: int = 300) -> list[bytes]:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(12)]
    raws = []
    for _ in range(size):
        x = {name: rng.choice((0.5, -1.0, 2.0, 0.1, True)) for name in rng.sample(names, rng.randint(0, 5))}
        raws.append(event(x, rng.choice((1, -1))) if rng.random() > 0.1 else b"no event")
    return raws


def apply_all(learner: Learner, records: list[bytes], rng: random.Random | None = None) -> Learner:
    """The learner after all records: one slice, or random slices with restores between some of them."""
    offset = begin = learner.next[P0]
    while offset < begin + len(records):
        size = rng.randint(1, 40) if rng else len(records)
        offset += learner.apply(Records.from_values(offset, records[offset - begin : offset - begin + size])).consumed
        if rng and rng.random() < 0.3:
            learner = restored(learner, learner.main.observations.options)
    return learner


@pytest.mark.parametrize(("seed", "scale"), [(0, {}), (1, {"scale": "standard", "clip": 1.0})])
def test_each_candidate_learns_as_its_own_model_and_leaves_the_model_unchanged(seed: int, scale: Any) -> None:
    identity = msgspec.structs.replace(MODEL, **scale)
    records, options = random_records(seed), three_candidates(identity)
    whole = apply_all(learner_of(identity, (), options), records)
    sliced = apply_all(learner_of(identity, (), options), records, random.Random(seed))
    assert state_digest(sliced) == state_digest(whole)
    assert sliced.main.counts == whole.main.counts
    assert sliced.main.observations.recent.pairs == whole.main.observations.recent.pairs
    plain = apply_all(learner_of(identity, (), Options(window=50)), records)
    assert plain.main.counts == whole.main.counts
    assert plain.main.weights.tobytes() == whole.main.weights.tobytes()
    label_counts, wrong, previous = Counter[int](), Counter[str](), -1
    for label in (json.loads(raw)["label"] for raw in records if raw != b"no event"):
        wrong["previous"] += label != previous
        previous = label
        wrong["baseline"] += (label == 1) != (label_counts[1] > label_counts[-1])
        label_counts[label] += 1
    wrong.update(last=whole.main.counts.wrong_predictions, average=whole.main.observations.recent.averaged.wrong)
    assert whole.main.observations.recent.previous == (sum(label_counts.values()), wrong["previous"])
    for name, candidate in sliced.candidates.items():
        recent, serve = candidate.observations.recent, options.candidates[name].serve
        own_model = apply_all(learner_of(candidate.identity, (), Options(window=50, serve=serve)), records)
        for array in candidate.arrays:
            assert candidate.arrays[array].tobytes() == own_model.arrays[array].tobytes(), (name, array)
        assert candidate.counts == msgspec.structs.replace(own_model.main.counts, rejected={})
        assert candidate.served.tobytes() == own_model.main.served.tobytes()
        assert recent.accuracy == own_model.main.observations.recent.accuracy
        assert candidate.observations.squared_steps == own_model.main.observations.squared_steps
        wrong[name] = recent.averaged.wrong if candidate.averaged else candidate.counts.wrong_predictions
    for (
        pair
    ) in sliced.main.observations.recent.pairs:  # each pair compares the served weights of both on the same events
        assert pair.first_only - pair.second_only == wrong[pair.second] - wrong[pair.first]
        assert pair.events == sliced.main.counts.events
    assert {
        name for pair in sliced.main.observations.recent.pairs for name in (pair.first, pair.second)
    } == wrong.keys()


def test_candidates_begin_continue_and_are_dropped_as_settings_say() -> None:
    records = random_records(5)
    learner = apply_all(learner_of(MODEL, (), three_candidates(serve="wide")), records[:50])
    assert learner.answering == "wide"
    new_options = three_candidates()._replace(serve="odd", candidates={
        "odd": three_candidates().candidates["odd"], "wide": candidate_options(MODEL, margin=(0.0, 1.0)),
        "new": candidate_options(MODEL, rule="half-step"),
    })  # fmt: skip
    weights = learner.candidates["odd"].weights.tobytes()
    learner = restored(learner, new_options)
    assert learner.answering == "odd"
    assert learner.reconcile() == (["new", "wide"], ["logistic", "wide"])
    assert learner.candidates["odd"].weights.tobytes() == weights
    assert {name: candidate.since for name, candidate in learner.candidates.items()} == {
        "new": {P0: 50}, "odd": {P0: 0}, "wide": {P0: 50},
    }  # fmt: skip
    assert learner.candidates["wide"].counts.events == 0
    compared = {name for pair in learner.main.observations.recent.pairs for name in (pair.first, pair.second)}
    assert compared == {"average", "baseline", "last", "odd", "previous"}, (
        "a candidate that begins from scratch has no pairs"
    )
    assert restored(learner, three_candidates(serve="absent")).answering is None
    learner.begin({P1: 7})
    assert learner.candidates["odd"].since == {P0: 0, P1: 7}


def test_a_candidate_that_diverges_stops_alone_and_its_state_says_where() -> None:
    options = three_candidates()._replace(serve="wild")
    options = options._replace(
        candidates={**options.candidates, "wild": candidate_options(MODEL, eta=3e14, average="recent", half_life=3)}
    )
    records = random_records(0)
    whole = apply_all(learner_of(MODEL, (), options), records)
    sliced = apply_all(learner_of(MODEL, (), options), records, random.Random(0))
    assert state_digest(sliced) == state_digest(whole)
    own_model = learner_of(options.candidates["wild"].identity)
    outcome = own_model.apply(Records.from_values(0, records))
    wild = sliced.candidates["wild"]
    assert own_model.main.diverged, "the stream must make it diverge"
    assert (wild.diverged, wild.diverged_at) == (own_model.main.diverged, (P0, outcome.consumed))
    assert wild.counts == msgspec.structs.replace(own_model.main.counts, rejected={})
    columns = len(own_model.columns)
    assert wild.weights[:columns].tobytes() == own_model.main.weights.tobytes()
    assert not wild.weights[columns:].any()
    assert (sliced.main.diverged, sliced.answering) == (None, None)
    assert sliced.main.counts == apply_all(learner_of(MODEL, (), Options()), records).main.counts
    assert all("wild" not in (pair.first, pair.second) for pair in sliced.main.observations.recent.pairs)


def test_the_candidate_that_answers_is_equal_to_a_model_of_its_own() -> None:
    records, options = random_records(4), three_candidates(serve="wide")
    learner = apply_all(learner_of(MODEL, (), options), records)
    wide = learner.serving
    own_model = apply_all(learner_of(wide.identity, (), Options(window=50, serve="average")), records)
    assert (wide.identity, wide.served.tobytes()) == (own_model.identity, own_model.main.served.tobytes())
    score = learner.score({"n1": 2.0, "n2": True}, wide)
    assert score == own_model.score({"n1": 2.0, "n2": True}, own_model.main)
    assert score != learner.score({"n1": 2.0, "n2": True}, learner.main)


async def test_a_rollback_restores_the_candidates_of_the_version() -> None:
    """Each candidate begins in a later partition where that partition began."""
    store, redis = simulated_store()
    options = Options(serve="best", candidates={"wide": candidate_options(Identity(), margin=(2.0, 2.0))})
    saver, learner = keeper(store, "m", options=options), learner_of(Identity(), (), options)
    learn(learner, "a", "b")
    first_save = await save(saver, learner)
    weights = learner.candidates["wide"].weights.tolist()
    learner.begin({P1: 5})
    learn(learner, "c")
    second_save = await save(saver, learner)
    stored_blobs = {name[2:]: blob for name, blob in redis.state.items() if name[:2] == "b:"}
    earlier, _ = restore_learner(first_save.head, stored_blobs, options)
    new = restored_version(first_save.head, earlier, second_save.head, second_save.digest, {}, 7.0)
    data = new.encode()
    restored_learner = restore_learner(Head.decode(data, blobs.digest(data)), stored_blobs, options)[1]()
    assert restored_learner.candidates["wide"].since == {P0: 0, P1: 5}
    assert restored_learner.candidates["wide"].weights.tolist() == weights
    assert restored_learner.reconcile() == ([], [])
    assert restored_learner.best
    assert (restored_learner.best.since, restored_learner.best.events) == ({P0: 0, P1: 5}, 0)


def test_a_state_that_does_not_match_its_digest_is_damaged() -> None:
    content = snapshot_content(learner_of(Identity(), [event({"a": 1.0}, 1)]))
    altered_head = msgspec.structs.replace(content.head, state_digest="0" * 64)
    with pytest.raises(SnapshotDamaged):
        restore_learner(altered_head, content.blobs, Options())
