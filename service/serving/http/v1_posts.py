"""Events and labels that are posted to `/v1`, and written to a model's topics before the answer."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from prometheus_client import Counter
from starlette.types import Receive, Scope

from service.errors import BadRecords, DependencyError, NotFound, Rejected, UnknownModel
from service.learning.events.value_buffer import ValueBuffer
from service.learning.events.value_formats import text_values
from service.serving.http.endpoint import Endpoint, InFlight, media_type
from service.serving.http.problems import StoredRecord, Unstored
from service.serving.posting import Posting
from service.serving.predictions import check_count, edges
from service.streaming.kafka.topic_writer import TopicWriter
from service.streaming.records import Message

NDJSON = b"application/x-ndjson"
ANSWER_SECONDS = 9.0
"""The time for Kafka to store the records of a post, which is answered within ten seconds."""
_BEFORE, _LIST, _AFTER = re.compile(rb'\s*\{\s*"[^"]*"\s*:\s*'), re.compile(rb"\s*\["), re.compile(rb"\s*\}\s*")
"""What stands before the value of an object's only member, how a list begins, and what stands after the value."""
_EventId = Annotated[Any, Meta(description="text or a whole number: the id of the event")]
_Label = Annotated[Any, Meta(description="one of the model's labels; null withdraws the event")]


class EventsRequest(msgspec.Struct):
    """One event, an object with any members as the model's settings say, or many as `events`, the only member."""

    events: list[dict[str, Any]] | UnsetType = UNSET


class LabelRecord(msgspec.Struct):
    """The label of an event."""

    id: _EventId
    label: _Label


class LabelsRequest(msgspec.Struct):
    """One label with the `id` of its event, or many as `labels`, the only member."""

    id: _EventId | UnsetType = UNSET
    label: _Label | UnsetType = UNSET
    labels: list[LabelRecord] | UnsetType = UNSET


class StoredRecords(msgspec.Struct, forbid_unknown_fields=True):
    """All records of the request are stored."""

    records: list[StoredRecord | None]
    """In the order of the request; null for a label whose prediction was left out by `predictions.share`."""


class Post(Endpoint):
    """Answers requests that post events, or labels."""

    def __init__(self, kind: str, find: Callable[[str], Posting | None], in_flight: InFlight, counter: Counter) -> None:
        """`kind` is "events" or "labels". `find` returns how a model takes posts, None if there is no such model.

        `counter` counts records by model, kind and result.
        """
        self._kind, self._find, self._in_flight, self._counter = kind, find, in_flight, counter

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """Store the records, and say where."""
        name = scope["path_params"]["name"]
        if (posting := self._find(name)) is None:
            raise UnknownModel
        if (writer := posting.labels if self._kind == "labels" else posting.events) is None:
            raise NotFound("this model has no labels that come later: set [models.NAME.join]")
        body = await self._in_flight.read(scope, receive, NDJSON)
        self._in_flight.take(len(body))
        try:
            is_ndjson, limit = media_type(scope["headers"]) == NDJSON, self._in_flight.limits.max_instances
            values, pointer = await asyncio.to_thread(_split, body, self._kind, is_ndjson, limit)
            records = await posting.read(self._kind, values, pointer)
        finally:
            self._in_flight.release(len(body))  # a post that waits for Kafka keeps no prediction out
        return msgspec.json.encode(StoredRecords(await self._write(name, writer, records, pointer)))

    async def _write(
        self, model: str, writer: TopicWriter, records: Sequence[Message | None], pointer: str
    ) -> list[StoredRecord | None]:
        """Write records; returns where each is stored, None for one that is not written. Raises Unstored."""
        written = {i: record for i, record in enumerate(records) if record}
        delivery, why = None, ""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                partitions, limit = await writer.facts()
                if not partitions:
                    raise NotFound(f"topic {writer.topic} does not exist")
                why_large = f"topic {writer.topic} takes at most {limit} bytes"
                # Only the size of a long record is looked at in detail, which takes time.
                if large := [i for i, r in written.items() if 2 * len(r.value or b"") > limit and r.wire_size > limit]:
                    raise BadRecords([Rejected("too-large", why_large, pointer.format(i)) for i in large])
                if written:
                    if delivery := writer.add([*written.values()]):
                        await asyncio.shield(delivery.ended)
                        why = delivery.why
                    else:
                        why = f"too many records wait for topic {writer.topic}"
        except TimeoutError:
            why = f"{writer.cluster}: no acknowledgement in time"
        except DependencyError as error:
            why = str(error)
        stored = zip(written, delivery.places, strict=True) if delivery else ()
        places = {i: StoredRecord(writer.topic, *place) for i, place in stored if place}
        self._counter.labels(model, self._kind, "stored").inc(len(places))
        self._counter.labels(model, self._kind, "unstored").inc(len(written) - len(places))
        answer = [places.get(i) for i in range(len(records))]
        if why:
            raise Unstored(why, answer)
        return answer


def _split(body: bytes, kind: str, is_ndjson: bool, limit: int) -> tuple[ValueBuffer, str]:
    """The records in a body, and the pointer of one, with `{}` in place of its index; raises Rejected."""
    if is_ndjson:
        data = np.frombuffer(body, np.uint8)
        ends = np.append(np.flatnonzero(data == ord("\n")), len(body) if body[-1:] != b"\n" else []).astype(np.int64)
        begins = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        check_count(len(ends), "", limit)
        for i in np.flatnonzero(begins == ends).tolist():
            raise Rejected("not-json", f"line {i} is empty", f"/{i}")
        return ValueBuffer(data, begins, ends), "/{}"
    commas = np.empty(limit, np.int64)
    member = text_values(body, ((kind,),), commas=commas).values[0]
    if member is UNSET or not (_BEFORE.fullmatch(body, 0, member.begin) and _AFTER.fullmatch(body, member.end)):
        return ValueBuffer.from_values([body]), ""
    if not _LIST.match(body, member.begin):
        raise Rejected("wrong-type", f"'{kind}' must be a list", f"/{kind}")
    check_count(member.items, kind, limit)
    return ValueBuffer(np.frombuffer(body, np.uint8), *edges(body, member, commas)), f"/{kind}/{{}}"
