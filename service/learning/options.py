"""The settings of a model that are not part of its identity: how it is observed and served."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from service.learning.identity import Identity
from service.learning.weights_file import WeightsFile

MODEL_ITSELF = ("last", "average")
"""The names of a model's own weights in `serve`. Any other name but BEST is that of a candidate."""
BEST = "best"
"""The value of `serve` with which the best predictor answers: see `best`."""


class CandidateOptions(NamedTuple):
    """The settings of a candidate."""

    identity: Identity
    serve: Literal["last", "average"] = "last"
    """The weights that answer if the candidate does."""
    positive_above: float | None = None


class Options(NamedTuple):
    """The options of one model."""

    window: int = 1000
    """The number of events in the recent window."""
    serve: str = "last"
    """The weights that answer: last, average, those of the candidate with this name, or BEST."""
    bound: bool = True
    """Whether the mistake bound is computed."""
    reference: WeightsFile | None = None
    """The reference vector of the bound, if the settings name one."""
    candidates: Mapping[str, CandidateOptions] = MappingProxyType({})
    """The candidates that learn next to the model, by name: see `classifier.Candidate`."""
    label_topic: str = ""
    """The topic of labels that come later, if they have one of their own."""
    max_silence: int = 0
    """Milliseconds that labels may be behind events before that is reported."""
    positive_above: float | None = None
    """The score above which the positive label is answered; None if the sign of the score decides."""

    def candidate_options(self, name: str) -> "Options":
        """The options of a candidate, which the settings may no longer have. A candidate has no bound."""
        own = self.candidates.get(name)
        serve, above = (own.serve, own.positive_above) if own else ("last", None)
        return Options(self.window, serve, bound=False, positive_above=above)


DEFAULT = Options()
