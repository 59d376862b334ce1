"""`serve = "best"`: who answers is a function of the records, and belongs to the state."""

import random
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from service.learning.options import Options
from service.learning.records import Records
from service.serving.model_info import Description
from service.serving.models import static_model
from service.snapshots.head import TopicIdentity
from service.tools.stored import export
from tests.checks import learner_of, restored, state_digest
from tests.conftest import event
from tests.partitions import P0, P1
from tests.saving import keeper, simulated_store
from tests.unit.learning.test_amendments import replay
from tests.unit.learning.test_candidates import MODEL, apply_all, candidate_options, three_candidates

WILD = candidate_options(MODEL, "average", eta=20.0, average="recent", half_life=20)
HUGE = [event({"a": 1.0, "z": 3e14}, label) for label in (1, -1)]
"""Records of which one makes WILD diverge, and no other predictor."""
BEST = three_candidates(serve="best")
WITH_WILD = BEST._replace(candidates={**BEST.candidates, "wild": WILD})


def drifting_records(seed: int, size: int = 1500) -> list[bytes]:
    """Records whose labels follow one of two functions, with noise or without; some are no events."""
    rng, records = random.Random(seed), list[bytes]()
    for i in range(size):
        x, part = {name: rng.choice((1.0, -1.0, 0.5)) for name in "abc"}, i // 300
        y = 1 if x["a"] + x["b"] * (1 if part % 2 else -1) > 0 else -1
        records.append(b"no event" if rng.random() < 0.05 else event(x, -y if rng.random() < 0.3 * (part % 2) else y))
    return records


def answers_by_rule(options: Options, records: list[bytes], window: int, begin: int = 0) -> list[str]:
    """The predictor that answers each event, by the rule in plain Python, from what each one got wrong.

    Events before `begin` are not compared.
    """
    learner = apply_all(learner_of(MODEL, (), options._replace(window=len(records), serve="last")), records)
    own, events = learner.main.observations.recent, learner.main.counts.events
    wrong = {"average": own.averaged_wrong.values.tolist(), "last": own.wrong.values.tolist()}
    for name, each in learner.candidates.items():
        wrong[name] = each.observations.recent.wrong_by(each.averaged).values.tolist()
    answering, answers = "average", list[str]()
    for n in range(1, events + 1):
        if len(wrong[answering]) < n:
            answering = "average"
        answers.append(answering)
        if n % 100 == 0 and n > begin:
            leads = []
            for name, flags in wrong.items():
                both = list(zip(wrong[answering], flags, strict=False))[max(begin, n - window) : n]
                lead = sum(a - b for a, b in both)
                if len(flags) >= n and lead > sum(a != b for a, b in both) ** 0.5:
                    leads.append((lead, name))
            answering = max(leads, key=lambda each: each[0])[1] if leads else answering
    return [*answers, answering if len(wrong[answering]) == events else "average"]


@pytest.mark.parametrize(("options", "window"), [(BEST, 50), (BEST, 300), (WITH_WILD, 300)])
def test_whoever_was_right_most_often_answers_however_records_are_sliced(options: Options, window: int) -> None:
    options, seen, diverged = options._replace(window=window), set[str](), 0
    for seed in range(4):
        records = drifting_records(seed)
        records[940:942] = HUGE if "wild" in options.candidates else []
        answers = answers_by_rule(options, records, window)
        whole = apply_all(learner_of(MODEL, (), options), records)
        assert whole.serve == answers[-1]
        sliced = learner_of(MODEL, (), options)
        while sliced.next[P0] < len(records):  # a restored learner answers alike, in the middle of a window too
            apply_all(sliced, records[(at := sliced.next[P0]) : at + random.Random(at).randint(1, 90)])
            sliced = restored(sliced, options)
            assert sliced.serve == answers[sliced.main.counts.events]
            replica = restored(sliced, Options(window=7, serve="best"))
            assert (replica.serve, replica.serving.served.tobytes()) == (sliced.serve, sliced.serving.served.tobytes())
        assert (state_digest(sliced), sliced.best) == (state_digest(whole), whole.best)
        assert whole.best
        changes = [(b, a) for a, b in pairwise(answers) if a != b]
        assert (len(whole.takeovers), whole.best.takeovers) == (len(changes), len(changes))
        assert [(each.name, each.instead_of) for each in whole.takeovers] == changes
        for figures in (whole, sliced):  # figures of answers are of who answered then
            served, recent = figures.main.observations.recent.served, figures.main.observations.recent_answers
            assert served.sum(axis=1).tolist()[0] == len(answers) - 1
            assert sum(recent.events) == window
        seen.update(answers)
        diverged += sum(each.lead == 0 for each in whole.takeovers)
    assert len(seen) >= 4, "the streams must make many take over"
    assert (diverged > 0) == ("wild" in options.candidates), "it must diverge while it answers"


@pytest.mark.parametrize("seed", range(4))
def test_events_before_best_was_set_are_not_compared(seed: int) -> None:
    records, options = drifting_records(seed), BEST._replace(window=300)
    learner = restored(apply_all(learner_of(MODEL, (), three_candidates()), records[:530]), options)
    learner.reconcile()
    answers = answers_by_rule(options, records, 300, learner.main.counts.events)
    for at in range(530, len(records), 10):
        apply_all(learner, records[at : at + 10])
        assert learner.serve == answers[learner.main.counts.events]


def test_figures_and_exports_are_of_who_answers() -> None:
    learner = apply_all(learner_of(MODEL, (), BEST), drifting_records(2))
    model: Any = static_model("m", learner, 0.0)
    about, best, answered = Description.from_model(model, model.answering), learner.best, learner.main.observations
    assert best
    assert (about.serve, about.takeovers, about.takeover) == (learner.serve, best.takeovers, best.takeover)
    assert about.recall.all == answered.recent.served[1, 1] / answered.recent.served[0, 1]
    assert about.auc == answered.ranking.auc == restored(learner, BEST).main.observations.ranking.auc
    assert export.export_json("m", model.answering)["coef"] == learner.serving.served[1:].tolist()


def test_best_goes_on_until_candidates_or_window_change() -> None:
    learner = apply_all(learner_of(MODEL, (), BEST), drifting_records(0))
    before, answering = learner.best, learner.serve
    assert before
    assert answering in BEST.candidates
    goes_on = restored(learner, BEST)
    assert goes_on.reconcile() == ([], [])
    assert goes_on.best == before
    goes_on.amend(replace(MODEL, eta=0.25))
    assert (goes_on.best, goes_on.main.averaged) == (before, answering != "last")
    fewer = {name: each for name, each in BEST.candidates.items() if name in {answering, "odd"}}
    for options, first in (
        (BEST._replace(window=70), answering),
        (BEST._replace(candidates=fewer), answering),
        (BEST._replace(candidates={answering: candidate_options(MODEL, eta=0.125)}), "average"),
    ):
        other = restored(learner, options)
        other.reconcile()
        assert other.best
        assert (other.best.first, other.best.since, other.best.takeovers) == (first, {P0: 1500}, 0)
    off = restored(learner, three_candidates())
    off.reconcile()
    assert (off.best, off.serve, off.answering) == (None, "last", None)
    assert state_digest(off) == state_digest(apply_all(learner_of(MODEL, (), three_candidates()), drifting_records(0)))


@pytest.mark.parametrize("kept", [0, 2])
async def test_verify_finds_the_same_predictor(kept: int) -> None:
    """Best is set later, candidates change, and two partitions are learned in turns.

    The replay begins with the first record, or with a version that was kept while another best predictor was chosen.
    """
    log = {P0: drifting_records(1), P1: drifting_records(2)}
    store: Any
    store, redis = simulated_store()
    learner = learner_of(MODEL, (), three_candidates())
    learner.begin({P1: 0})
    fewer = {name: each for name, each in BEST.candidates.items() if name != "odd"}
    options = [three_candidates(), BEST, *[BEST._replace(candidates=fewer)] * 2]
    saver = keeper(store, "m", keep=kept)

    async def kept_heads(_: str, versions: list[int]) -> list[bytes]:
        return [redis.state[f"v:{version}"] for version in versions]

    store.kept = kept_heads
    for step, setting in enumerate(options):
        if setting is not learner.options:
            learner = restored(learner, setting)
            learner.reconcile()
        for partition in (P0, P1, P0):
            at = learner.next[partition]
            learner.apply(Records.from_values(at, log[partition][at : at + 180], partition))
        saver.keep_every = 0.0 if step < 2 else 1e9
        assert await saver.save(learner, {}, TopicIdentity("c"))
        snapshot, replayed = await replay(store, log)
        assert state_digest(replayed) == snapshot.head.state_digest

    assert learner.best
    assert learner.best.takeovers > 0
