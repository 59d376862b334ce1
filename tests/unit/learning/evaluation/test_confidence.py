"""Confidence sequences: how often an interval misses the truth at any time, and how wide it is."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.learning.evaluation import confidence_sequences
from service.learning.evaluation.confidence_sequences import PairedComparison, interval, lower_end

Vector = NDArray[np.float64]
Chance = Callable[[int, Vector, Vector], Any]
"""The chance that event i is predicted rightly, from the right ones so far and the sum of the chances so far."""

MEANS: dict[str, Chance] = {
    "86 in 100": lambda *_: 0.86,
    "1 in 100": lambda *_: 0.01,
    "it drifts": lambda i, *_: 0.7 + 0.25 * math.sin(i / 80),
    "a break": lambda i, *_: 0.95 if i < 300 else 0.4,
    "against what was: luck is made wild": lambda _, k, s: np.where(k > s, 0.5, 0.9),
    "against what was: misfortune is made wild": lambda _, k, s: np.where(k < s, 0.5, 0.9),
    "once well ahead it stays so": lambda _, k, s: np.where(k > s + 3.0 * np.sqrt(s / 4 + 1), 1.0, 0.5),
}
STREAMS = int(os.environ.get("STREAMS", "200"))
EVENTS = 2000 if STREAMS > 1000 else 600
PAIRS = STREAMS // 2


@pytest.mark.parametrize("name", MEANS)
def test_an_interval_ever_misses_in_at_most_one_of_twenty_streams(name: str) -> None:
    """The interval misses the mean chance so far, at any time, in at most a twentieth of the streams."""
    rng = np.random.default_rng(7)
    right, expected, missed = np.zeros(STREAMS), np.zeros(STREAMS), np.zeros(STREAMS, bool)
    for i in range(EVENTS):
        p = np.broadcast_to(MEANS[name](i, right, expected), STREAMS)
        right, expected = right + (rng.random(STREAMS) < p), expected + p
        low, high = lower_end(i + 1, right), 1.0 - lower_end(i + 1, i + 1 - right)
        missed |= (expected / (i + 1) < low - 1e-12) | (expected / (i + 1) > high + 1e-12)
    share = float(missed.mean())
    print(f"{name}: {share:.2%} of {STREAMS:,} streams of {EVENTS:,} events are missed at some time")
    assert share <= confidence_sequences.ERROR_PROBABILITY


def test_an_interval_is_at_most_twice_as_wide_as_that_of_one_look() -> None:
    """One look at a time that was fixed beforehand needs the normal interval."""
    for events in (10**3, 10**5, 10**9):
        low, high = interval(events, round(0.86 * events))
        fixed_width = 2 * 1.96 * math.sqrt(0.86 * 0.14 / events)
        assert low < 0.86 < high
        assert (high - low) / fixed_width < 2.0


def test_the_edges() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    for events in (1, 5, 1000, 10**12):
        for right in (0, events):
            low, high = interval(events, right)
            assert 0.0 <= low <= right / events <= high <= 1.0
    assert interval(5, 5)[1] == 1.0
    assert interval(5, 0)[0] == 0.0
    assert interval(1000, 700, error=0.001)[0] < interval(1000, 700)[0] < 0.7


def compare_pairs(better: float) -> tuple[float, dict[str, float]]:
    """Compare pairs that differ in more and more events, in which the first is right with chance 0.5 + `better`.

    If `better` > 0, the chance varies in waves. Returns the share of pairs whose interval ever missed the truth, and
    for each name the share of pairs in which it was ever called better.
    """
    rng, i, missed, better_counts = np.random.default_rng(11), np.arange(EVENTS), 0, {"a": 0, "b": 0}
    for _ in range(PAIRS):
        differ = rng.random(EVENTS) < 0.05 + 0.3 * i / EVENTS
        chance = np.clip(0.5 + better + 0.2 * np.sin(i / 20) * (better > 0), 0, 1)
        first = differ & (rng.random(EVENTS) < chance)
        mean = np.cumsum(np.where(differ, 2 * chance - 1, 0)) / (i + 1)
        first_only, second_only = np.cumsum(first), np.cumsum(differ & ~first)
        pair_missed, called_better = False, set[str | None]()
        for index in range(19, EVENTS, 20):
            pair = PairedComparison("a", "b", index + 1, int(first_only[index]), int(second_only[index]))
            low, high = pair.interval()
            pair_missed |= not low <= mean[index] <= high
            called_better.add(pair.better())
        missed += pair_missed
        better_counts = {name: count + (name in called_better) for name, count in better_counts.items()}
    return missed / PAIRS, {name: count / PAIRS for name, count in better_counts.items()}


@pytest.mark.parametrize("better", [0.25, 0.0])
def test_the_better_of_two_is_named_and_neither_if_they_are_equal(better: float) -> None:
    missed, better_shares = compare_pairs(better)
    print(f"{PAIRS:,} pairs: {missed:.2%} missed at some time; said to be better: {better_shares}")
    assert missed <= confidence_sequences.ERROR_PROBABILITY
    if better:
        assert better_shares["a"] > 0.95
        assert better_shares["b"] == 0.0
    else:
        assert better_shares["a"] + better_shares["b"] <= confidence_sequences.ERROR_PROBABILITY
