"""What requests write to a model's topics: events and labels that are posted, and predictions that are logged.

Posts are read by the model's own rules. A prediction becomes an event without a label, whose label can come later.
"""

import asyncio
import math
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace
from prometheus_client import Counter

from service.errors import BadRecords, Rejected
from service.learning.events.event_reader import EventReader
from service.learning.events.json_values import Path, parse_pointer, quoted_name, to_pointer
from service.learning.events.read_events import Reject
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity, Label, label_as_json
from service.serving.predictions import Asked, LabelScore, Prediction, ScoringRequest
from service.streaming.kafka.topic_writer import Delivery, TopicWriter
from service.streaming.records import Message

CLOUD_EVENT = ("ce_specversion", b"1.0"), ("ce_type", b"perceptron.prediction.v1")
"""Headers by which these records are CloudEvents."""
PAUSE_SECONDS, MAX_DUE = 0.01, 100
"""Records are made when MAX_DUE are due, or after this time: many at once take a third of the time (measured)."""
_INTEGER = re.compile(rb"-?[0-9]+")


def is_in_share(id_: str, share: float) -> bool:
    """Whether predictions with this id are logged, if a share of them is."""
    return share == 1.0 or zlib.crc32(id_.encode()) < share * 2.0**32


def document(members: Iterable[tuple[Path, Any]]) -> bytes:
    """A JSON object with these values at these paths; a later one may stand within an earlier one's text.

    >>> document([(("a",), Raw(b'{"b": 1}')), (("a", "id"), "x")])
    b'{"a":{"b":1,"id":"x"}}'
    """
    whole: Any = {}
    for path, value in members:
        if not path:
            whole = msgspec.json.decode(value, type=dict[str, Raw])
            continue
        inner = whole
        for name in path[:-1]:
            if isinstance(inner.setdefault(name, {}), Raw):
                inner[name] = msgspec.json.decode(inner[name], type=dict[str, Raw])
            inner = inner[name]
        inner[path[-1]] = value
    return msgspec.json.encode(whole)


def first_allowed(where: Mapping[str, Sequence[Any]]) -> list[tuple[Path, Any]]:
    """The members that a record must have to be read, by their paths: the first allowed values."""
    return [(parse_pointer(pointer), values[0]) for pointer, values in where.items()]


class Posting:
    """What is posted to one model, and where it is written."""

    def __init__(
        self, identity: Identity, events: TopicWriter | None, labels: TopicWriter | None, share: float = 1.0
    ) -> None:
        """`labels` is None if labels do not come later. A label whose id is outside of `share` is not written."""
        self.events, self.labels = events, labels
        self._identity, self._share, self._turn = identity, share, asyncio.Lock()
        self._event_reader, self._joined_reader = EventReader(identity), EventReader(identity, labels=True)
        if join := identity.join or None:
            posted = replace(join, id="/id", label="/label", label_value=None, where={}, own_topic=True)
            self._label_reader = EventReader(replace(identity, join=posted), labels=True)

    async def read(self, kind: str, values: ValueBuffer, pointer: str) -> Sequence[Message | None]:
        """The records of events or labels, None for a label that is not written; raises BadRecords.

        `pointer` is the JSON pointer of one of them in the request, with `{}` in place of its index.
        """
        async with self._turn:  # a reader is not for several threads
            if kind == "events":
                return await asyncio.to_thread(self._read_events, values, pointer)
            records, rejects = await asyncio.to_thread(self.label_records, values)
            _check(rejects, pointer)
            return [*records.values()]

    def _read_events(self, values: ValueBuffer, pointer: str) -> list[Message]:
        events, join = self._event_reader.read(values), self._identity.join or None
        rejects, ids = events.rejects, dict(zip(events.records, events.ids, strict=True))
        if join and not join.own_topic and events.skipped:
            labels = self._joined_reader.read(values[events.skipped]).moved(events.skipped)
            rejects, ids = rejects + labels.rejects, ids | dict(zip(labels.records, labels.ids, strict=True))
        _check(rejects, pointer)
        return [_message(ids.get(i), value or b"") for i, value in enumerate(values)]

    def label_records(self, values: Sequence[bytes | None]) -> tuple[dict[int, Message | None], Sequence[Reject]]:
        """The records of good labels by their indices, None for one that is not written; and the rejects."""
        labels, join = self._label_reader.read(values), self._identity.join
        assert join  # noqa: S101 - the caller has checked it
        rejects, value = labels.rejects, join.label_value
        if value is not None:
            why = f"'label' must be {label_as_json(value)}"
            wrong = np.flatnonzero(labels.labels != self._label_reader.signs[isinstance(value, bool), value])
            rejects = rejects + [Reject(labels.records[i], "unknown-label", why, "/label") for i in wrong.tolist()]
        own, multiclass = self._identity.labels or (-1, 1), self._identity.multiclass
        before, records = first_allowed(join.where), dict[int, Message | None]()
        id_path, label_path = parse_pointer(join.id), parse_pointer(join.label or "")
        for i, id_, sign in zip(labels.records, labels.ids, labels.labels.tolist(), strict=True):
            members = [*before, (id_path, id_)]
            if label_path:
                label = None if math.isnan(sign) else own[int(sign) if multiclass else sign > 0.0]
                members.append((label_path, label))
            is_written = is_in_share(id_ or "", self._share)
            records[i] = _message(id_, document(members)) if is_written else None
        return records, rejects


def _check(rejects: Sequence[Reject], pointer: str) -> None:
    """Raise BadRecords, in the order of the records, if there are rejects."""
    if rejects:
        raise BadRecords([Rejected(r.reason, r.detail, pointer.format(r.record) + r.pointer) for r in sorted(rejects)])


def _message(id_: str | None, value: bytes) -> Message:
    return Message(None if id_ is None else id_.encode(), value.strip(), [], int(time.time() * 1000))


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

    def __init__(self, model: str, identity: Identity, writer: TopicWriter, share: float, counter: Counter) -> None:
        """`counter` counts records by model and result, which is written, lost or dropped. Each begins at 0."""
        self._writer, self._share = writer, share
        self._written, self._lost, self._dropped = (counter.labels(model, r) for r in ("written", "lost", "dropped"))
        places = identity.event
        self._features, self._label, self._id = map(parse_pointer, (places.features, places.label, places.id or ""))
        self._where, source = first_allowed(places.where), f"/v1/models/{model}".encode()
        self._common = [("model", model.encode()), *CLOUD_EVENT, ("ce_source", source)]
        self._answered, self._due = list[tuple[ScoringRequest, Sequence[Prediction], int, str | None, int]](), 0

    def add_soon(
        self, request: ScoringRequest, predictions: Sequence[Prediction], version: int, candidate: str | None
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
        self, request: ScoringRequest, predictions: Sequence[Prediction], version: int, candidate: str | None,
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
            self._dropped.inc(len(records))

    def _count_ended(self, delivery: Delivery) -> None:
        lost = delivery.places.count(None)
        self._lost.inc(lost)
        self._written.inc(len(delivery.places) - lost)

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
