"""Events and labels that are posted to a model: read by its own rules, they become records of its topics."""

import asyncio
import math
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from msgspec.structs import replace

from service.errors import BadRecords, Rejected
from service.learning.events.event_reader import EventReader
from service.learning.events.json_pointer import Path, parse_pointer
from service.learning.events.read_events import Reject
from service.learning.events.value_buffer import ValueBuffer
from service.learning.identity import Identity, label_as_json
from service.streaming.kafka.topic_writer import TopicWriter
from service.streaming.records import Message


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
            read = self._read_labels if kind == "labels" else self._read_events
            return await asyncio.to_thread(read, values, pointer)

    def _read_events(self, values: ValueBuffer, pointer: str) -> list[Message]:
        events, join = self._event_reader.read(values), self._identity.join or None
        rejects, ids = events.rejects, dict(zip(events.records, events.ids, strict=True))
        if join and not join.own_topic and events.skipped:
            labels = self._joined_reader.read(values[events.skipped]).moved(events.skipped)
            rejects, ids = rejects + labels.rejects, ids | dict(zip(labels.records, labels.ids, strict=True))
        _check(rejects, pointer)
        return [_message(ids.get(i), value or b"") for i, value in enumerate(values)]

    def _read_labels(self, values: ValueBuffer, pointer: str) -> list[Message | None]:
        records, rejects = self.label_records(values)
        _check(rejects, pointer)
        return [*records.values()]

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
