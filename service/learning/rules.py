"""The rules in one table. A new rule is a name, a row, its step, and a test.

Every rule changes the weights along the event, w += step·x, so a rule is its step: a function of the score s = w·x, of
the label y ∈ {-1, +1} and of the rate η·weight. tests/formulas.py has the formulas as the texts write them, with their
sources, and the tests compare both. The kernel compiles the functions of this module.
A step that needs more than s, y and the rate, such as ‖x‖², also changes the loops of `kernel.kernel`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


class Rule(NamedTuple):
    """The properties of a rule; its step is in `step`."""

    mistake_driven: bool
    """Whether it changes weights only at mistakes (y·s <= 0, or <= the margin of the label) or only at wrong outputs.
    The perceptron theorem is about these rules."""
    eta: float = 1.0
    """The default: no rule diverges with it on standardised data, even if some ‖x‖² is 2,000 as in scikit-learn's
    digits."""
    eta_below: float = math.inf
    """η is smaller than this."""
    settings: Mapping[str, Any] = {}
    """Settings that only this rule takes, and their defaults; None if it needs a value."""
    parameter: Callable[[Any], float] = lambda _: 1.0
    """A factor of the step, by the identity. An update of a mistake-driven rule adds this times η·weight·y·x."""
    tie: Literal["negative", "positive"] = "negative"
    """The default label of a score of 0."""
    probability: Callable[[float, float], float] | None = None
    """The probability of the positive label by the score and `parameter`, if the rule models it."""
    classes: bool = False
    """Whether the rule can learn more than two labels: see `kernel`."""
    exact: bool = True
    """Whether the same records give the same bits on any machine."""


def logistic(z: float) -> float:
    """1/(1 + e^-z).

    >>> logistic(0.0), logistic(-1e308), logistic(1e308)
    (0.5, 0.0, 1.0)
    """
    # Two forms of one function, so that exp never overflows.
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))


RuleName = Literal["perceptron", "error-correction", "half-step", "lms", "logistic-delta", "threshold-unit"]
RULES: dict[str, Rule] = {
    # Margins are from Li, Zaragoza, Herbrich, Shawe-Taylor and Kandola, "The perceptron algorithm with uneven margins"
    # (ICML 2002). No text gives a margin to the other rules: they update at a wrong output, or always.
    "perceptron": Rule(mistake_driven=True, settings={"margin": 0.0}, classes=True),
    "error-correction": Rule(
        mistake_driven=True,
        settings={"outputs": "bipolar"},
        parameter=lambda identity: 1.0 if identity.outputs == "binary" else 2.0,
    ),
    "half-step": Rule(mistake_driven=True, eta=0.5, eta_below=1.0),
    "lms": Rule(mistake_driven=False, eta=0.001, classes=True),
    "logistic-delta": Rule(
        mistake_driven=False,
        eta=0.1,
        settings={"slope": 1.0},
        parameter=lambda identity: identity.slope or 1.0,
        probability=lambda s, slope: logistic(slope * s),
        classes=True,
        exact=False,
    ),
    # McCulloch and Pitts: fixed weights and a threshold. The unit fires if the sum reaches the threshold.
    "threshold-unit": Rule(mistake_driven=False, settings={"weights": None, "threshold": None}, tie="positive"),
}
PERCEPTRON, ERROR_CORRECTION, HALF_STEP, LMS, LOGISTIC_DELTA, THRESHOLD_UNIT = range(len(RULES))


def decide(s: Any, positive_tie: Any) -> Any:
    """Whether a score (or each of an array) predicts the positive label: s > 0, and s = 0 if `positive_tie`.

    >>> decide(0.1, False), decide(0.0, False), decide(0.0, True)
    (True, False, True)
    """
    return (s > 0.0) | ((s == 0.0) & positive_tie)


def step(rule: int, s: float, y: float, rate: float, positive_tie: bool, parameter: float, margin: float) -> float:
    """The step of an update, along x. `rule` is the rule's index in RULES, `margin` the margin of the label y."""
    output = 1.0 if decide(s, positive_tie) else -1.0
    if rule == PERCEPTRON:
        return rate * y if y * s <= margin else 0.0
    if rule in (ERROR_CORRECTION, HALF_STEP):
        return rate * ((y - output) / 2.0 * parameter)
    if rule == LMS:
        return rate * (y - s)
    if rule == LOGISTIC_DELTA:
        o = logistic(parameter * s)
        return rate * ((1.0 if y > 0.0 else 0.0) - o) * (parameter * o * (1.0 - o))
    return 0.0
