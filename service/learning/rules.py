"""The rules in one table. A new rule is a row, its step, and a test.

Every rule changes the weights along the event, w += step·x, so a rule is its step: a function of the score s = w·x, of
the label y ∈ {-1, +1} and of the rate η·weight. The formulas as the texts write them, with their sources, are in
tests/formulas.py; this is held against them. The kernel compiles what it calls here.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

Updates = Literal["mistakes", "wrong outputs", "always", "never"]


class Rule(NamedTuple):
    """The properties of a rule; its step is in `step`."""

    updates: Updates
    """The events that it changes weights at: mistakes (y·s <= 0, or <= its label's margin), those whose output differs
    from the label, all, none. The perceptron theorem is about the first two."""
    eta: float = 1.0
    """The default: none diverges on standardised data, also where some ‖x‖² is 2,000 as in scikit-learn's digits."""
    eta_below: float = math.inf
    """η is smaller than this."""
    settings: Mapping[str, Any] = {}
    """Settings that only this rule takes, and their defaults; None if it needs a value."""
    parameter: Callable[[Any], float] = lambda _: 1.0
    """A factor of its step, by the identity. An update of a mistake-driven rule adds this times η·weight·y·x."""
    tie: Literal["negative", "positive"] = "negative"
    """The default."""
    probability: Callable[[float, float], float] | None = None
    """The probability of the positive label by the score and `parameter`, if the rule models it."""
    classes: bool = False
    """Whether the rule exists for more than two labels: see `kernel`."""
    exact: bool = True
    """Whether the same records give the same bits on any machine."""

    @property
    def mistake_driven(self) -> bool:
        """Whether it updates only where y·s <= 0, or a margin, so that the perceptron theorem is about it."""
        return self.updates in ("mistakes", "wrong outputs")


def logistic(z: float) -> float:
    """1/(1 + e^-z).

    >>> logistic(0.0), logistic(-1e308), logistic(1e308)
    (0.5, 0.0, 1.0)
    """
    # The same function twice, so that e^ never overflows.
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))


RULES = {
    # Its margins are Li, Zaragoza, Herbrich, Shawe-Taylor and Kandola's: "The perceptron algorithm with uneven margins"
    # (ICML 2002). The others update where an output is wrong, or always, and no text gives those one.
    "perceptron": Rule("mistakes", settings={"margin": 0.0}, classes=True),
    "error-correction": Rule(
        "wrong outputs",
        settings={"outputs": "bipolar"},
        parameter=lambda identity: 1.0 if identity.outputs == "binary" else 2.0,
    ),
    "half-step": Rule("wrong outputs", eta=0.5, eta_below=1.0),
    "lms": Rule("always", eta=0.001, classes=True),
    "logistic-delta": Rule(
        "always",
        eta=0.1,
        settings={"slope": 1.0},
        parameter=lambda identity: identity.slope or 1.0,
        probability=lambda s, slope: logistic(slope * s),
        classes=True,
        exact=False,
    ),
    # McCulloch and Pitts: given weights and threshold, which fires where that is reached.
    "threshold-unit": Rule("never", settings={"weights": None, "threshold": None}, tie="positive"),
}
PERCEPTRON, ERROR_CORRECTION, HALF_STEP, LMS, LOGISTIC_DELTA, THRESHOLD_UNIT = range(len(RULES))

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(RULES)]


def decide(s: Any, positive_tie: Any) -> Any:
    """Whether a score (or each of an array) predicts the positive label: s > 0; what s = 0 gives is a convention.

    >>> decide(0.1, False), decide(0.0, False), decide(0.0, True)
    (True, False, True)
    """
    return (s > 0.0) | ((s == 0.0) & positive_tie)


def step(rule: int, s: float, y: float, rate: float, positive_tie: bool, parameter: float, margin: float) -> float:
    """The step of an update, along x: see the module. `rule` is its place in RULES, `margin` that of the label y."""
    output = 1.0 if decide(s, positive_tie) else -1.0
    if rule == PERCEPTRON:
        return rate * y if y * s <= margin else 0.0
    if rule == ERROR_CORRECTION:
        return rate * ((y - output) / 2.0 * parameter)
    if rule == HALF_STEP:
        return 0.5 * rate * (y - output)
    if rule == LMS:
        return rate * (y - s)
    if rule == LOGISTIC_DELTA:
        o = logistic(parameter * s)
        return rate * ((1.0 if y > 0.0 else 0.0) - o) * (parameter * o * (1.0 - o))
    return 0.0
