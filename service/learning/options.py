"""How a model is watched and served: what is set for it, and is no part of its identity."""

from typing import Literal, NamedTuple

from service.learning.weights import Weights


class Options(NamedTuple):
    """Of one model."""

    window: int = 1000
    """Events that recent figures are over."""
    serve: Literal["last", "average"] = "last"
    """Which weights answer."""
    bound: bool = True
    """Whether the sums of the mistake bound are kept."""
    reference: Weights | None = None
    """The bound's reference, where one is given."""


DEFAULT = Options()
