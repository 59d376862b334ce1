"""How sure an accuracy is, and a difference of two, at all times together: confidence sequences from counts alone.

Let p be the chance that a predictor is right about an event before its label is seen, given all events before it and
its own features. The estimate is of the mean of p over the events so far: stream and predictor may change, and p may
depend on all events before. For k right of n events and any λ > 0

    exp(λk) / Π (1 + p·(e^λ - 1))      is a martingale of mean 1 (the product over the n events), and
    exp(λk) / (1 + mean p·(e^λ - 1))^n is never more, since log(1 + p·(e^λ - 1)) is concave in p.

By Ville's inequality the second is below 1/δ at all n together, except with a chance of δ. Solved for the mean of p,
the largest such limit over the λ in BET_SIZES, each with its part of the error, is the lower end. The upper end is 1
minus the lower end for the wrong predictions. (Sub-Bernoulli process and finite mixtures: Howard, Ramdas, McAuliffe,
Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences"; as a bet on each event: Waudby-Smith,
Ramdas 2023, "Estimating means of bounded random variables by betting"; the mean of the expectations as estimand of two
predictors: Choe, Ramdas 2024, "Comparing sequential forecasters".) k may also be a sum of outcomes anywhere in [0, 1].
"""

import functools
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

ERROR_PROBABILITY = 0.05
"""The chance that an interval misses the true mean at any time."""
BET_SIZES = 8.0 * 0.5 ** np.arange(16)
"""The values of λ: the largest are best for the first events, the smallest for 10⁹ of them."""


def lower_end(events: ArrayLike, right: ArrayLike, error: float = ERROR_PROBABILITY) -> Any:
    """The lower end of the interval for `right` of `events`, in the shape of these counts; 0 without events."""
    n, k = np.maximum(events, 1)[..., None], np.asarray(right)[..., None]
    limits = np.expm1((k * BET_SIZES - np.log(2 * len(BET_SIZES) / error)) / n) / np.expm1(BET_SIZES)
    return np.maximum(limits.max(axis=-1), 0.0)


@functools.lru_cache(1000)  # the intervals of a hundred models, most of which stay the same between scrapes
def interval(events: int, right: int, error: float = ERROR_PROBABILITY) -> tuple[float, float]:
    """The interval of the mean chance to be right, with `right` of `events`; 0 and 1 without events.

    >>> "{:.4f} to {:.4f}".format(*interval(10_000, 8610))
    '0.8480 to 0.8733'
    """
    return float(lower_end(events, right, error)), 1.0 - float(lower_end(events, events - right, error))


class PairedComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two predictors on the same events, with the number of events where only one of them was right.

    An event where both are right, or both wrong, says nothing about their difference. So the interval is that of the
    mean chance that `first` is right, over the events where only one of the two is.

    >>> pair = PairedComparison("average", "last", 10_000, 700, 400)
    >>> f"{pair.difference:.4f}", "{:.4f} to {:.4f}".format(*pair.interval()), pair.better()
    ('0.0300', '0.0183 to 0.0413', 'average')
    """

    first: str
    second: str
    events: int = 0
    first_only: int = 0
    second_only: int = 0

    @property
    def difference(self) -> float | None:
        """How much larger the first one's accuracy is, in [-1, 1]; None before the first event."""
        return (self.first_only - self.second_only) / self.events if self.events else None

    def interval(self, error: float = ERROR_PROBABILITY) -> tuple[float, float]:
        """The interval of the mean difference between their chances to be right, in [-1, 1]."""
        differ = self.first_only + self.second_only
        low, high = interval(differ, self.first_only, error)
        share = differ / self.events if self.events else 1.0
        return share * (2.0 * low - 1.0), share * (2.0 * high - 1.0)

    def better(self, error: float = ERROR_PROBABILITY) -> str | None:
        """The name of the better one, if the interval does not contain 0."""
        low, high = self.interval(error)
        return self.first if low > 0.0 else self.second if high < 0.0 else None


def update_pairs(pairs: Sequence[PairedComparison], right: Mapping[str, NDArray[np.bool_]]) -> list[PairedComparison]:
    """The pairs after another batch: `right` says which events each predictor was right about, shape (events,).

    Pairs are in the order of the names. A pair with a missing predictor is left out, and a new pair begins here.
    """
    before = {(pair.first, pair.second): pair for pair in pairs}
    names = sorted(right)
    flags = np.array([right[name] for name in names], float)
    both = (flags @ flags.T).astype(int).tolist()  # all pairs at once: sums of ones are exact
    after = []
    for (i, first), (j, second) in combinations(enumerate(names), 2):
        pair = before.get((first, second)) or PairedComparison(first, second)
        first_only, second_only = pair.first_only + both[i][i] - both[i][j], pair.second_only + both[j][j] - both[i][j]
        after.append(PairedComparison(first, second, pair.events + flags.shape[1], first_only, second_only))
    return after
