"""The settings of a model that are not part of its identity: how it is watched and served."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from service.learning.identity import Identity
from service.learning.weights_file import WeightsFile

MODEL_ITSELF = ("last", "average")
"""The names of a model's own weights in `serve`; any other name is a candidate's."""


class CandidateOptions(NamedTuple):
    """The settings of a candidate."""

    identity: Identity
    serve: Literal["last", "average"] = "last"
    """Which of its weights answer."""


class Options(NamedTuple):
    """The options of one model."""

    window: int = 1000
    """Events that recent figures are over."""
    serve: str = "last"
    """Which weights answer: last, average, or those of the candidate of this name."""
    bound: bool = True
    """Whether the sums of the mistake bound are kept."""
    reference: WeightsFile | None = None
    """The reference of the bound, if the settings give one."""
    candidates: Mapping[str, CandidateOptions] = MappingProxyType({})
    """The candidates that learn next to the model, by name: see `candidates`."""

    def beside(self, name: str) -> "Options":
        """The options of a candidate, which the settings may no longer have. It keeps no bound."""
        wanted = self.candidates.get(name)
        return Options(self.window, wanted.serve if wanted else "last", bound=False)


DEFAULT = Options()
