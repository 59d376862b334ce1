"""The oracle of every learned state: the rule from the literature, in a few lines without imports of the service."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def standard(x: float, sums: Sequence[float], clip: float | None = None) -> float:
    """The distance of x from the mean in standard deviations, clipped from 10 numbers on; 0 if the deviation is 0."""
    n, mean, m2 = sums[:3]
    z = (x - mean) / math.sqrt(m2 / n) if n and m2 / n > 0.0 else 0.0
    return max(-clip, min(clip, z)) if clip and n >= 10 else z


def welford(sums: Sequence[float], x: float) -> tuple[float, ...]:
    """n, mean and M2 with one number more."""
    n, mean, m2 = sums
    d = x - mean
    mean += d / (n + 1.0)
    return n + 1.0, mean, m2 + d * (x - mean)


def update_sums(sums: dict[Any, tuple[float, ...]], key: Any, x: float, clip: float | None = None) -> float:
    """Add a number to the Welford sums of its feature; returns it as it counts.

    With `clip` the newest numbers have sums too. They take over if the variance fell when n has doubled.
    """
    before = sums.get(key, (0.0,) * 6)
    own, newest = before[:3], before[3:]
    if clip:
        if newest[0] >= 10 and 2 * newest[0] >= own[0]:
            own = newest if 0 < 4 * (newest[2] / newest[0]) < own[2] / own[0] else own
            newest = (0.0,) * 3
        n, mean, m2 = own
        if n >= 10 and m2 > 0 and (x - mean) * (x - mean) * n > clip * clip * m2:
            x = mean + math.copysign(clip * math.sqrt(m2 / n), x - mean)
        newest = welford(newest, x)
    sums[key] = (*welford(own, x), *(newest if clip else ()))
    return x


def squared(x: Iterable[tuple[str, float]]) -> float:
    """‖x‖² with the bias, summed in record order: `sum` may round differently."""
    total = 1.0
    for _, v in x:
        total += v * v
    return total


class Fold:
    """The perceptron rule, applied to one event after the other with json, a dict of names and a plain loop."""

    def __init__(
        self,
        eta: float = 1.0,
        half_life: int | None = None,
        scaled: bool = False,
        margins: tuple[float, float] = (0.0, 0.0),
        clip: float | None = None,
    ) -> None:
        """`margins` of the negative and of the positive label: an event is an update if y·s is at most its margin."""
        self.eta, self.half_life, self.scaled, self.margins, self.clip = eta, half_life, scaled, margins, clip
        self.sums: dict[str, tuple[float, ...]] = {}
        """The sums of each numeric feature, if values are scaled: see `update_sums`."""
        self.w: dict[str, Any] = {}  # in order of first sight
        self.bias: Any = 0.0
        self.recent: list[float] = []
        """The recent average of `vector`, if there is a half-life: E ← βE + (1 - β)w after each event."""
        self.events = self.mistakes = self.wrong = self.updates = 0
        self.limit = 0.0
        """The limit of ‖w‖²: each update adds at most its own square, and twice its length times its margin."""
        self.diverged = False

    def learn(self, raw: bytes | str) -> None:
        """Learn one event, unless an update would have taken the squared norm of the weights beyond 1e30."""
        if self.diverged:
            return
        event = json.loads(raw)
        y = 1.0 if event["label"] in (1, True) else -1.0
        x, sums = self.features(event["features"])
        s = self.bias
        for name, v in x:
            s += self.w.get(name, 0.0) * v
        step = self.eta * event.get("weight", 1.0) * y
        margin = self.margins[y > 0]
        if y * s <= margin and self._beyond(step, x):
            self.diverged = True
            return
        self.sums = sums
        for name, _ in x:
            self.w.setdefault(name, 0.0)
        self.events += 1
        self.wrong += (s > 0) != (y > 0)
        self.mistakes += y * s <= 0
        if y * s <= margin:
            self.updates += 1
            self.bias += step
            for name, v in x:
                self.w[name] += step * v
            self.limit += step * step * squared(x) + 2 * abs(step) * margin
        self._average()

    def _average(self) -> None:
        if self.half_life:
            beta, vector = 0.5 ** (1 / self.half_life), self.vector
            weight, previous = 1.0 - beta, self.recent + [0.0] * (len(vector) - len(self.recent))
            self.recent = [beta * e + weight * w for e, w in zip(previous, vector, strict=True)]

    def features(self, features: Any) -> tuple[list[tuple[str, float]], dict[str, tuple[float, ...]]]:
        """The names and values that weights are multiplied with, and the sums by which they are scaled."""
        named = features if isinstance(features, dict) else {str(i): v for i, v in enumerate(features)}
        flat = [(f"{name}={v}", True) if isinstance(v, str) else (name, v) for name, v in named.items()]
        if not self.scaled:
            return [(name, float(v)) for name, v in flat], self.sums
        sums, clip = dict(self.sums), self.clip
        flat = [(name, v if isinstance(v, bool) else update_sums(sums, name, v, clip)) for name, v in flat]
        return [(n, float(v) if isinstance(v, bool) else standard(v, sums[n], clip)) for n, v in flat], sums

    def _beyond(self, step: float, x: Iterable[tuple[str, float]]) -> bool:
        # After few and short steps no sum is needed: by the triangle inequality and Cauchy's inequality.
        upper_bound = self.limit + step * step + sum((step * v) * (step * v) for _, v in x)
        if (self.updates + 1) * upper_bound <= 1e30:
            return False
        updated = self.w | {name: self.w.get(name, 0.0) + step * v for name, v in x}
        return not sum(v * v for v in (self.bias + step, *updated.values())) <= 1e30

    def fold(self, events: Iterable[bytes | str]) -> "Fold":
        for raw in events:
            self.learn(raw)
        return self

    @property
    def vector(self) -> list[float]:
        return [self.bias, *self.w.values()]


class Classes(Fold):
    """The rule for three labels or more: the bias and each name have a list of weights, one for each label.

    The label of the largest score is predicted, the first of equal ones. Unless the score of its own label is strictly
    the largest, an event is added to its label's weights and subtracted from those of the best wrong label.
    """

    def __init__(self, labels: Sequence[Any], eta: float = 1.0, half_life: int | None = None, **scaling: Any) -> None:
        super().__init__(eta, half_life, **scaling)
        self.labels = list(labels)
        self.bias = [0.0] * len(self.labels)
        self.confusion = [[0] * len(self.labels) for _ in self.labels]

    def learn(self, raw: bytes | str) -> None:
        if self.diverged:
            return
        event = json.loads(raw)
        own, (x, sums) = self.labels.index(event["label"]), self.features(event["features"])
        w, bias, zero = dict(self.w), self.bias, [0.0] * len(self.labels)
        s = list(bias)
        for name, v in x:
            s = [a + b * v for a, b in zip(s, w.setdefault(name, zero), strict=True)]
        rival = max((k for k in range(len(s)) if k != own), key=lambda k: s[k])
        step = self.eta * event.get("weight", 1.0)
        if mistake := s[own] <= s[rival]:

            def update(weights: list[float], v: float) -> list[float]:
                return [a + step * v if k == own else a - step * v if k == rival else a for k, a in enumerate(weights)]

            bias = update(bias, 1.0)
            for name, v in x:
                w[name] = update(w[name], v)
            if not sum(a * a for weights in (bias, *w.values()) for a in weights) <= 1e30:
                self.diverged = True
                return
            self.limit += 2 * step * step * squared(x)
        self.w, self.bias, self.sums = w, bias, sums
        self.confusion = [list(row) for row in self.confusion]
        self.confusion[own][s.index(max(s))] += 1
        self.events += 1
        self.wrong += s.index(max(s)) != own
        self.mistakes += mistake
        self.updates += mistake
        self._average()

    @property
    def vector(self) -> list[float]:
        """The weights of the bias for all labels, then those of each name."""
        return [a for weights in (self.bias, *self.w.values()) for a in weights]


def assert_model_is_fold(fold: Fold, model: Any, weights: Any) -> None:
    """Assert that `GET /v1/models/{m}` and all pages of its weights equal the fold, bit for bit."""
    assert (model["events"], model["mistakes"], model["wrong_predictions"]) == (fold.events, fold.mistakes, fold.wrong)
    assert model["updates"] == fold.updates
    assert [r["name"] for r in weights["weights"]] == list(fold.w)
    assert [weights["bias"], *(r["weight"] for r in weights["weights"])] == fold.vector
    assert model["squared_norm_limit"] == fold.limit
    assert math.isclose(model["squared_norm"], sum(v * v for v in fold.vector), rel_tol=1e-12)
    assert model["squared_norm"] <= model["squared_norm_limit"] * (1 + 1e-12)
