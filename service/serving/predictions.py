"""What a protocol of predictions exchanges with scoring: instances go in, and predictions come out."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic import BaseModel, Field

from service.errors import Rejected
from service.learning.events.flatten import Features, Flattener
from service.learning.events.read_events import FeatureRows
from service.learning.identity import MAX_CLASSES, Label

PredictedLabel = Annotated[Label, Meta(examples=[1], description="a boolean, a number or text")]
Probability = Annotated[float, Meta(examples=[0.93], description="of the positive label, with rule logistic-delta")]


class Contribution(msgspec.Struct, forbid_unknown_fields=True):
    """One term of the score."""

    name: Annotated[str, Meta(examples=["clicks"])]
    value: Annotated[float, Meta(examples=[2.0])]
    weight: Annotated[float, Meta(examples=[1.5])]
    product: Annotated[float, Meta(examples=[3.0])]
    scaled: Annotated[float, Meta(description="the scaled value that the weight was multiplied by")] | UnsetType = UNSET


class LabelScore(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A label and its score."""

    label: PredictedLabel
    score: float


_CONTRIBUTIONS = (
    "with ?explain=true, largest first; with three labels and more each weight is the label's less the runner-up's; "
    "a hashed feature's weight has the sign of its hash"
)
Contributions = Annotated[list[Contribution], Meta(description=_CONTRIBUTIONS)]
Ranking = Annotated[list[LabelScore], Meta(description="with three labels or more: the ?top=10 largest, largest first")]
RunnerUp = Annotated[Label, Meta(examples=[2], description="with ?explain=true: the label with the next score")]


class Prediction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The predicted label, the score w·x that it comes from, the numbers of unknown and of missing features.

    With three labels and more each label has a score. The first label with the largest score is predicted.
    """

    label: PredictedLabel
    score: float
    unknown_features: int
    missing_features: Annotated[int, Meta(description="usual in events, and not in these features")]
    probability: Probability | UnsetType = UNSET
    scores: Ranking | UnsetType = UNSET
    runner_up: RunnerUp | UnsetType = UNSET
    contributions: Contributions | UnsetType = UNSET


class Instances(msgspec.Struct, gc=False):
    """The instances of a request, or a piece of them; their features are checked."""

    features: Sequence[Features] | FeatureRows
    pointer: str
    """The JSON pointer of an instance, with `{}` in place of its index if the request has a list of instances."""


class Asked(NamedTuple):
    """An instance as it was sent: features and an id next to them, or a whole record."""

    pointer: str
    """The JSON pointer of the instance in the request."""
    value: msgspec.Raw
    id: msgspec.Raw
    """Empty if there is none next to the features."""
    is_event: bool


class PredictParameters(BaseModel, extra="forbid"):
    """How a request wants its predictions: the query parameters of `/v1`."""

    explain: bool = Field(False, description="add what each feature contributes to the score")
    top: int = Field(10, ge=1, le=MAX_CLASSES, description="the number of scores, with three labels and more")
    candidate: str | None = Field(None, description="the candidate that answers")


class PredictionRequest(Protocol):
    """A request for predictions in some protocol, and the answer to it."""

    ids_are_valid: bool
    """Whether `read` has found that each id is a text or an integer."""

    @property
    def is_large(self) -> bool:
        """Whether a thread reads and answers it."""

    def read(self, flattener: Flattener) -> Instances:
        """All instances of a request that is not large, without compiled rows; raises Rejected."""

    def read_pieces(self, flattener: Flattener, by_rows: bool) -> Iterator[Instances]:
        """The instances in pieces, for a thread; `by_rows` allows compiled rows. Raises Rejected."""

    def asked(self) -> Sequence[Asked]:
        """All instances as they were sent; the request was read."""

    def answer(
        self, predictions: list[Prediction], model: str, version: int, ahead: int, candidate: str | None
    ) -> bytes:
        """The body of the response. It may change the predictions, which nothing else reads.

        They are by the state of a model that learned `ahead` events since the accepted snapshot of this `version`.
        `candidate` answered, or the model itself if it is None.
        """

    def fault(self, rejected: Rejected) -> Rejected:
        """The error, in the words of the protocol."""
