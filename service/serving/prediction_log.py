"""What a model was asked, written to a topic as events without a label, so that labels can come later."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw, UnsetType

from service.errors import Rejected
from service.learning.events.json_pointer import Path, parse_pointer, quoted_name, to_pointer
from service.learning.identity import Identity, Label
from service.serving.posting import document, first_allowed, is_in_share
from service.serving.predictions import Asked, LabelScore, Prediction, PredictionRequest
from service.streaming.kafka.topic_writer import Delivery, TopicWriter
from service.streaming.records import Message

CLOUD_EVENT = ("ce_specversion", b"1.0"), ("ce_type", b"perceptron.prediction.v1")
"""Headers by which these records are CloudEvents."""
PAUSE_SECONDS, MAX_DUE = 0.01, 100
"""A record is made once so many are due, or after this time: many at once take a third of the time (measured)."""
_INTEGER = re.compile(rb"-?[0-9]+")


@lru_cache(maxsize=1)
def _second(seconds: int) -> bytes:
    """A second since 1970 in UTC, as in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()


class LoggedPrediction(msgspec.Struct):
    """The answer, in the header `prediction` of a record."""

    label: Label
    score: float
    probability: float | UnsetType = UNSET
    scores: list[LabelScore] | UnsetType = UNSET


class PredictionLog:
    """The log of one model."""

    def __init__(
        self, model: str, identity: Identity, writer: TopicWriter, share: float, count: Callable[[str, int], None]
    ) -> None:
        """`count` gets a result, which is written, lost or dropped, and a number of records."""
        self._writer, self._share, self._count = writer, share, count
        places = identity.event
        self._features, self._label, self._id = map(parse_pointer, (places.features, places.label, places.id or ""))
        self._where, source = first_allowed(places.where), f"/v1/models/{model}".encode()
        self._common = [("model", model.encode()), *CLOUD_EVENT, ("ce_source", source)]
        self._answered, self._due = list[tuple[PredictionRequest, Sequence[Prediction], int, str | None, int]](), 0

    def add_soon(
        self, request: PredictionRequest, predictions: Sequence[Prediction], version: int, candidate: str | None
    ) -> None:
        """Write the records of a small request in the background; the rest is as for `records`."""
        if not request.ids_are_valid:
            for each in request.asked():
                self._id_of(each)
        if not self._answered:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.flush)
        self._answered.append((request, predictions, version, candidate, time.time_ns() // 1_000_000))
        self._due += len(predictions)
        if self._due >= MAX_DUE:
            self.flush()

    def flush(self) -> None:
        """Add the records that are due."""
        answered, self._answered, self._due = self._answered, [], 0
        self.add([record for each in answered for record in self.records(*each)])

    def records(
        self, request: PredictionRequest, predictions: Sequence[Prediction], version: int, candidate: str | None,
        now: int | None = None,
    ) -> list[Message]:  # fmt: skip
        """The records of instances with an id, and of their predictions; raises Rejected for an id of another kind.

        `version` and `candidate` answered, `now`, in milliseconds since 1970.
        """
        now = now or time.time_ns() // 1_000_000
        records: list[Message] = []
        when = b"%s.%03dZ" % (_second(now // 1000), now % 1000)
        common = [*self._common, ("version", b"%d" % version), ("served_at", when), ("ce_time", when)]
        if candidate is not None:
            common.append(("candidate", candidate.encode()))
        for each, prediction in zip(request.asked(), predictions, strict=True):
            id_ = self._id_of(each)
            if id_ is None or not is_in_share(id_, self._share):
                continue
            answer = LoggedPrediction(prediction.label, prediction.score, prediction.probability, prediction.scores)
            key = id_.encode()
            own = [("prediction", msgspec.json.encode(answer)), ("ce_id", key)]
            records.append(Message(key, self._value(each, id_), [*own, *common], now))
        return records

    def add(self, records: Sequence[Message]) -> None:
        """Write these records in the background; drop them if too many wait."""
        if not records:
            return
        if delivery := self._writer.add(records):
            delivery.ended.add_done_callback(lambda _: self._count_ended(delivery))
        else:
            self._count("dropped", len(records))

    def _count_ended(self, delivery: Delivery) -> None:
        lost = delivery.places.count(None)
        self._count("lost", lost)
        self._count("written", len(delivery.places) - lost)

    def _id_of(self, asked: Asked) -> str | None:
        text = bytes((_value_at(asked.value, self._id) if asked.is_event else asked.id) or b"null").strip()
        if text == b"null":
            return None
        if text[:1] == b'"':
            return msgspec.json.decode(text, type=str)
        if _INTEGER.fullmatch(text):
            return text.decode()
        pointer = asked.pointer + to_pointer(self._id if asked.is_event else ("id",))
        raise Rejected("wrong-type", f"{quoted_name(pointer)} must be a string or an integer", pointer)

    def _value(self, asked: Asked, id_: str) -> bytes:
        """The record: an event as it was sent, but for its label, or features and id where the model reads them."""
        if not asked.is_event:
            return document([(self._features, asked.value), *self._where, (self._id, id_)])
        return bytes(asked.value if _value_at(asked.value, self._label) is None else _without(asked.value, self._label))


def _members(text: Raw) -> dict[str, Raw]:
    """The texts of an object's members; none of any other value."""
    try:
        return msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.ValidationError:
        return {}


def _value_at(text: Raw, path: Path) -> Raw | None:
    """The text of the value at a path; None if there is none."""
    for name in path:
        if (inner := _members(text).get(name)) is None:
            return None
        text = inner
    return text


def _without(text: Raw, path: Path) -> bytes:
    """An object's text without the member at a path, which it has."""
    members, name = _members(text), path[0]
    if len(path) == 1:
        del members[name]
    else:
        members[name] = Raw(_without(members[name], path[1:]))
    return msgspec.json.encode(members)
