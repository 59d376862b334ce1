"""The rules as the literature writes them, in plain Python: the oracle of the compiled kernel.

An event is a label y ∈ {-1, +1}, an importance weight, and its features as (column, value) pairs in record
order. Column 0 is the bias, x0 = 1, and comes first. s = w·x is the score. Every rule here changes the weights along
the event, w += step·x, so a rule is its step: a function of s and y. Sums run in record order; a step is (η·weight)
times the rest, and an event whose step is zero is no update.
"""

import math
from collections.abc import Callable, MutableSequence, Sequence

from service.learning.identity import Identity

Features = Sequence[tuple[int, float]]


def score(w: Sequence[float], x: Features) -> float:
    """s = w·x, the induced local field; bias first, then record order."""
    s = w[0]
    for column, value in x:
        s += w[column] * value
    return s


def output(s: float, tie: str) -> float:
    """φ(s), the hard limiter: +1 if s > 0 else -1; what s = 0 gives is a convention (`tie`).

    Haykin's lecture notes map 0 to -1, Varner's Lecture 3a maps it to +1.
    """
    return 1.0 if s > 0.0 or (s == 0.0 and tie == "positive") else -1.0


def perceptron(s: float, y: float, eta: float, margins: tuple[float, float] = (0.0, 0.0)) -> float:
    """The mistake-driven rule: if y·s <= 0 then w += η·y·x, else nothing (Rosenblatt; Ahmed & Pavlu).

    The condition includes s = 0, so that the first event on zero weights always updates. With margins τ₋ and τ₊ it is
    y·s <= τ_y (Li, Zaragoza, Herbrich, Shawe-Taylor and Kandola).
    """
    return eta * y if y * s <= margins[y > 0.0] else 0.0


def error_correction(s: float, y: float, eta: float, outputs: str, tie: str) -> float:
    """The error-correction form: w += η·[d - φ(s)]·x (Haykin, lecture notes).

    With `bipolar` outputs d, φ ∈ {-1, +1} the step is 2η, with `binary` ones, {0, 1}, it is η.
    """
    difference = y - output(s, tie)
    return eta * (difference if outputs == "bipolar" else difference / 2.0)


def half_step(s: float, y: float, eta: float, tie: str) -> float:
    """The half-step form: w += ½·η·(y - out)·x, 0 < η < 1 (perceptron note): the mistake-driven rule but at s = 0."""
    return 0.5 * eta * (y - output(s, tie))


def lms(s: float, y: float, eta: float) -> float:
    """The linear unit by stochastic gradient descent, o = s: w += η·(y - o)·x (Widrow-Hoff; Ahmed & Pavlu).

    It follows the negative gradient of E = ½·(y - o)², mistake or not.
    """
    return eta * (y - s)


def logistic_delta(s: float, y: float, eta: float, slope: float) -> float:
    """The delta rule of a logistic unit, o = 1/(1 + e^(-a·s)): w += η·(t - o)·f'(s)·x, f' = a·o·(1 - o).

    The target t is 1 for a positive event, 0 for a negative one (perceptron note). `slope` is a.
    """
    z = slope * s
    # The same function in two forms, so that e^ never overflows.
    o = 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))
    return eta * ((1.0 if y > 0.0 else 0.0) - o) * (slope * o * (1.0 - o))


def step_of(identity: Identity) -> Callable[[float, float, float], float]:
    """The rule of a model, as step(s, y, η·weight)."""
    tie, outputs, slope = identity.tie, identity.outputs, identity.slope
    steps: dict[str, Callable[[float, float, float], float]] = {
        "perceptron": lambda s, y, eta: perceptron(s, y, eta, identity.margins),
        "error-correction": lambda s, y, eta: error_correction(s, y, eta, outputs or "bipolar", tie),
        "half-step": lambda s, y, eta: half_step(s, y, eta, tie),
        "lms": lms,
        "logistic-delta": lambda s, y, eta: logistic_delta(s, y, eta, slope or 1.0),
        # McCulloch and Pitts: fixed weights and threshold, no learning.
        "threshold-unit": lambda _s, _y, _eta: 0.0,
    }
    return steps[identity.rule]


def steps_of_classes(identity: Identity, s: Sequence[float], own: int, eta: float) -> list[float]:
    """The step that an event of class `own` adds to each class's weights along x, from all scores and η·weight.

    The simplest ultraconservative rule (Crammer and Singer 2003): unless its own score is strictly the largest, η to
    its own class and -η to the best wrong class, the first of equals. LMS and logistic-delta: each class against the
    rest, y = 1 for its own events and -1 for all others.
    """
    if identity.rule != "perceptron":
        return [step_of(identity)(class_score, 1.0 if k == own else -1.0, eta) for k, class_score in enumerate(s)]
    rival = max((k for k in range(len(s)) if k != own), key=lambda k: s[k])
    return [0.0 if s[own] > s[rival] else {own: eta, rival: -eta}.get(k, 0.0) for k in range(len(s))]


def learn_classes(
    w: Sequence[MutableSequence[float]], x: Features, own: int, weight: float, identity: Identity
) -> tuple[list[float], bool]:
    """Learn one event: change `w`, one vector per class; return the scores before, and whether anything changed."""
    s = [score(class_weights, x) for class_weights in w]
    steps = steps_of_classes(identity, s, own, identity.eta * weight)
    for class_weights, step in zip(w, steps, strict=True):
        class_weights[0] += step
        for column, value in x:
            class_weights[column] += step * value
    return s, any(steps)


def learn(w: MutableSequence[float], x: Features, y: float, weight: float, identity: Identity) -> tuple[float, float]:
    """Learn one event: change `w` in place; return the score before the change, and the step (0 without a change)."""
    s = score(w, x)
    step = step_of(identity)(s, y, identity.eta * weight)
    if step != 0.0:
        w[0] += step
        for column, value in x:
            w[column] += step * value
    return s, step
