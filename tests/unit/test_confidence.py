"""Confidence sequences: how often an interval is at any time without what it is of, and how wide it is for that."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.learning import confidence
from service.learning.confidence import Paired, followed, interval, intervals
from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from tests.checks import restored
from tests.unit.test_bounds import begun, event

Vector = NDArray[np.float64]
Chance = Callable[[int, Vector, Vector], Any]
"""Of event i to be predicted rightly, by stream: from what was right so far, and what was to be expected."""

MEANS: dict[str, Chance] = {
    "1 in 2": lambda *_: 0.5,
    "86 in 100": lambda *_: 0.86,
    "99 in 100": lambda *_: 0.99,
    "1 in 100": lambda *_: 0.01,
    "it learns": lambda i, *_: 0.5 + 0.45 * i / (i + 100),
    "it drifts": lambda i, *_: 0.7 + 0.25 * math.sin(i / 80),
    "a break": lambda i, *_: 0.95 if i < 300 else 0.4,
    "two kinds of events in turns": lambda i, *_: (0.98, 0.6)[i % 2],
    "against what was: luck is made rare": lambda _, k, s: np.where(k > s, 0.85, 0.95),
    "against what was: luck is made wild": lambda _, k, s: np.where(k > s, 0.5, 0.9),
    "against what was: misfortune is made wild": lambda _, k, s: np.where(k < s, 0.5, 0.9),
    "once well ahead it stays so": lambda _, k, s: np.where(k > s + 3.0 * np.sqrt(s / 4 + 1), 1.0, 0.5),
    "once well behind it stays so": lambda _, k, s: np.where(k < s - 3.0 * np.sqrt(s / 4 + 1), 0.0, 0.5),
}
STREAMS = int(os.environ.get("STREAMS", "200"))
EVENTS = 2000 if STREAMS > 1000 else 600
PAIRS = STREAMS // 2
Ends = Callable[[Any, Any], tuple[Any, Any]]


def missed(chance: Chance, ends: Ends = intervals) -> float:
    """The share of streams in whom the interval after some event is without the mean chance so far."""
    rng = np.random.default_rng(7)
    right, expected, out = np.zeros(STREAMS), np.zeros(STREAMS), np.zeros(STREAMS, bool)
    for i in range(EVENTS):
        p = np.broadcast_to(chance(i, right, expected), STREAMS)
        right, expected = right + (rng.random(STREAMS) < p), expected + p
        low, high = ends(np.full(STREAMS, i + 1), right)
        out |= (expected / (i + 1) < low - 1e-12) | (expected / (i + 1) > high + 1e-12)
    return float(out.mean())


@pytest.mark.parametrize("name", MEANS)
def test_at_no_time_but_in_one_of_twenty_streams(name: str) -> None:
    """`make bounds` has 10,000 streams of each kind."""
    share = missed(MEANS[name])
    print(f"{name}: {share:.2%} of {STREAMS:,} streams of {EVENTS:,} events are missed at some time")
    assert share <= confidence.ERROR


def at_one_time(events: Any, right: Any) -> tuple[Any, Any]:
    """What a poll would have, from a hundred events on: right 95 % of the time that one looks once."""
    share = np.asarray(right) / events
    width = 1.96 * np.sqrt(share * (1.0 - share) / events) + (events < 100)
    return share - width, share + width


def of_half_the_variance(events: Any, right: Any) -> tuple[Any, Any]:
    """Half of the logarithm that is asked for is what half the variance would need."""
    parts = 2 * len(confidence.TILTS)
    return intervals(events, right, parts * math.sqrt(confidence.ERROR / parts))


@pytest.mark.parametrize("ends", [at_one_time, of_half_the_variance], ids=lambda e: e.__name__)
def test_a_fault_is_noticed(ends: Ends) -> None:
    share = missed(MEANS["86 in 100"], ends)
    print(f"{ends.__name__}: {share:.2%} of {STREAMS:,} streams are missed at some time")
    assert share > confidence.ERROR


def test_each_part_of_it_is_a_martingale() -> None:
    """The mean of exp(λk)/(1 + p(e^λ - 1))^n over all k is 1: neither more, or it would miss, nor less."""
    n = 60
    counts = [math.comb(n, k) for k in range(n + 1)]
    for p in (0.01, 0.3, 0.9):
        for tilt in confidence.TILTS:
            of = [
                c * p**k * (1.0 - p) ** (n - k) * math.exp(tilt * k - n * math.log1p(p * math.expm1(tilt)))
                for k, c in enumerate(counts)
            ]
            assert sum(of) == pytest.approx(1.0)
    # And the lower end is where the largest of them is its part of the error.
    for right in (5, 30, 59):
        low = interval(n, right)[0]
        logs = [tilt * right - n * math.log1p(low * math.expm1(tilt)) for tilt in confidence.TILTS]
        assert max(logs) == pytest.approx(math.log(2 * len(logs) / confidence.ERROR))


@pytest.mark.parametrize("share", [0.5, 0.86, 0.99])
def test_how_wide_it_is(share: float) -> None:
    """At most twice what one look at a time fixed beforehand would need, from 10³ to 10⁹ events."""
    for digits in range(2, 10):
        events = 10**digits
        low, high = interval(events, round(share * events))
        fixed = 2 * 1.96 * math.sqrt(share * (1 - share) / events)
        print(f"{share}: {events:,} events: {low:.4f} to {high:.4f}, {(high - low) / fixed:.2f} times that of one look")
        assert low < share < high
        assert digits == 2 or (high - low) / fixed < 2.0


def test_the_edges() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    for events in (1, 5, 1000, 10**12):
        for right in (0, events):
            low, high = interval(events, right)
            assert 0.0 <= low <= right / events <= high <= 1.0
    assert interval(5, 5)[1] == 1.0
    assert interval(5, 0)[0] == 0.0
    assert interval(1000, 700, error=0.001)[0] < interval(1000, 700)[0] < 0.7


def compared(better: float) -> tuple[float, dict[str, float]]:
    """Pairs that differ in more and more events, the first with this chance above one half where they do, in waves.

    The share of pairs that were missed at some time, and of those where each was ever said to be better.
    """
    rng, i, missed, said = np.random.default_rng(11), np.arange(EVENTS), 0, {"a": 0, "b": 0}
    for _ in range(PAIRS):
        differ = rng.random(EVENTS) < 0.05 + 0.3 * i / EVENTS
        chance = np.clip(0.5 + better + 0.2 * np.sin(i / 20) * (better > 0), 0, 1)
        first = differ & (rng.random(EVENTS) < chance)
        both = ~differ & (rng.random(EVENTS) < 0.8)
        mean = np.cumsum(np.where(differ, 2 * chance - 1, 0)) / (i + 1)
        pair, out, ever = Paired("a", "b"), False, set[str | None]()
        for at in range(0, EVENTS, 20):
            part = slice(at, at + 20)
            pair = pair.then((first | both)[part], (differ & ~first | both)[part])
            low, high = pair.interval()
            out |= not low <= mean[at + 19] <= high
            ever.add(pair.better())
        missed += out
        said = {name: count + (name in ever) for name, count in said.items()}
    return missed / PAIRS, {name: count / PAIRS for name, count in said.items()}


def test_of_two_the_better_one_is_said_to_be() -> None:
    share, said = compared(0.25)
    print(f"{PAIRS:,} pairs: {share:.2%} missed at some time; the first was said to be better in {said['a']:.2%}")
    assert share <= confidence.ERROR
    assert said["a"] > 0.95
    assert said["b"] == 0.0


def test_of_two_that_are_as_good_it_is_not_said() -> None:
    share, said = compared(0.0)
    wrongly = said["a"] + said["b"]
    print(f"{PAIRS:,} pairs as good: {share:.2%} missed at some time; one was said to be better in {wrongly:.2%}")
    assert wrongly <= confidence.ERROR


def test_pairs_are_counted_however_events_are_cut() -> None:
    rng = np.random.default_rng(3)
    right = {name: rng.random(100) < 0.7 for name in ("a", "b", "c")}
    whole = followed([], right)
    assert [(p.first, p.second) for p in whole] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert whole[0].difference == pytest.approx(right["a"].mean() - right["b"].mean())
    cut: list[Paired] = []
    for at in range(0, 100, 7):
        cut = followed(cut, {name: bits[at : at + 7] for name, bits in right.items()})
    assert cut == whole
    # One that is removed is not compared any more; one that is added begins at the next event.
    later = followed(
        whole, {name: bits[:10] for name, bits in (("a", right["a"]), ("d", right["b"]), ("c", right["c"]))}
    )
    assert {(p.first, p.second): p.events for p in later} == {("a", "c"): 110, ("a", "d"): 10, ("c", "d"): 10}


@pytest.mark.parametrize("size", [1, 7, 300])
def test_a_model_compares_its_weights_their_average_and_the_baseline(size: int) -> None:
    """As a fold by hand does, in slices of any size, over a restore."""
    rng = np.random.default_rng(2)
    rows = [({"a": float(x), "b": float(z)}, int(x + z + e > 0.3)) for x, z, e in rng.normal(size=(300, 3))]
    learner = begun(Identity(average=True), Options())
    for at in range(0, 300, size):
        learner.apply(0, Records.of(at, [event(*row) for row in rows[at : at + size]]))
        learner = restored(learner) if at < 100 else learner
    one, right = begun(Identity(average=True), Options(serve="average")), dict[str, list[bool]]()
    seen = [0, 0]
    for at, (x, label) in enumerate(rows):
        served, last = one.score(x)[0] > 0, Identity().decide(sum_of(one.weights, one.columns.find(x)[0]))
        for name, said in (("average", served), ("last", last), ("baseline", seen[1] > seen[0])):
            right.setdefault(name, []).append(bool(said) == bool(label))
        seen[label] += 1
        one.apply(0, Records.of(at, [event(x, label)]))
    assert learner.watch.recent.pairs == followed([], {name: np.array(bits) for name, bits in right.items()})
    assert [p.events for p in learner.watch.recent.pairs] == [300] * 3


def sum_of(w: Vector, pairs: Any) -> float:
    """The score by the last weights, where the average is served."""
    return float(w[0] + sum(w[column] * value for column, value in pairs))
