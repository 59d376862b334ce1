"""How a model is watched and served: what is set for it, and is no part of its identity."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from service.learning.identity import Identity
from service.learning.weights import Weights

OWN_WEIGHTS = ("last", "average")
"""Which of its own weights a model may answer with; else a candidate answers."""


class Beside(NamedTuple):
    """A candidate as it is set."""

    identity: Identity
    serve: Literal["last", "average"] = "last"
    """Which of its weights answer."""


class Options(NamedTuple):
    """Of one model."""

    window: int = 1000
    """Events that recent figures are over."""
    serve: str = "last"
    """Which weights answer: last, average, or those of the candidate of this name."""
    bound: bool = True
    """Whether the sums of the mistake bound are kept."""
    reference: Weights | None = None
    """The bound's reference, where one is given."""
    candidates: Mapping[str, Beside] = MappingProxyType({})
    """What is learned side by side with the model, by name: see `candidates`."""

    def beside(self, name: str) -> "Options":
        """Those of the candidate of this name, which may not be set any more. No bound is kept for one."""
        wanted = self.candidates.get(name)
        return Options(self.window, wanted.serve if wanted else "last", bound=False)


DEFAULT = Options()
