"""A join: events wait for the records that bring their labels, by their ids."""

import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.learning.evaluation.prequential import NOT_ASKED
from service.learning.events.careful_reader import label_signs
from service.learning.events.read_events import EventIds, ReadEvents
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity
from service.learning.join import memory
from service.learning.join.memory import FIRST_LABEL_RANK, FOREVER, NEVER, Memory
from service.learning.options import Options
from service.learning.records import PartitionId, Place, Records

MIN_CLOSED_EVENTS, MAX_CLOSED_EVENTS = 50, 4000
"""Bounds of the number of events that leave the memory at once: more of them would hold the event loop."""
_DAY = 86_400_000
_FEWEST_SLOTS = 1 << 14
"""Items for which there is room at least, and which room grows by at least."""
_KEPT_TIMES = [memory.STREAM_TIME, memory.CLOSED, memory.DROPPED_UNTIL]
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SEED = secrets.randbits(32)
Answers = NDArray[np.int32] | None


def step_of(window: int) -> int:
    """The step of time, in milliseconds, in which windows of this length close."""
    return min(1000, max(1, window // 100))


class PartitionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition of a join as a head has it. Times are in milliseconds, NEVER before the first ones."""

    tail: list[int]
    """The last timestamps of records, then the last two of label records."""
    label_time: int
    """How far labels have come; FOREVER if windows do not wait for them."""
    rebuild: int
    """The offset of the first record that is remembered."""


class JoinState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A join as a head has it. Times are in milliseconds, NEVER before the first ones. What is held is in the log."""

    stream_time: int
    closed: int
    """The time up to which windows are closed."""
    dropped_until: int
    """The time up to which events were dropped for want of room."""
    partitions: dict[PartitionId, PartitionState]
    held: int
    held_since: int | None
    """The timestamp of the oldest held event."""
    digest: str
    """A digest of everything that is remembered."""

    @property
    def rebuild(self) -> dict[PartitionId, int]:
        """The offset of the first record that is remembered, by partition."""
        return {partition: each.rebuild for partition, each in self.partitions.items()}


class JoinedEvents(NamedTuple):
    """Events that are not held any more, in the order in which they are learned, with their labels."""

    values: ValueBuffer
    labels: NDArray[np.float64]
    place: Place
    """Returns the partition and the offset of the event at an index."""
    answers: NDArray[np.int32]
    """The code of the answer that was given about each, see `GivenAnswers`."""


class Join:
    """The events and labels that one model remembers."""

    def __init__(self, identity: Identity, options: Options) -> None:
        rules, once = identity.join or None, identity.once or 0
        self.stored: JoinState | None = None
        """The state that it was restored from, until `rebuild` has brought back what that remembers."""
        self._numbers: dict[PartitionId, int] = {}
        self._options, self.shares_topic = options, rules is not None and not rules.own_topic
        reach, numbers = identity.reach_ms, [once, once, 2 * once, 1, 4 * FOREVER, False, 0, False, FOREVER, False]
        if rules is not None:
            window, default = rules.window, rules.default_label
            sign = 0 if default is None else int(label_signs(identity)[isinstance(default, bool), default])
            numbers = [
                window, reach - window, reach, step_of(window), max(_DAY, window), default is not None, sign,
                rules.waits_for_labels, rules.max_held, True,
            ]  # fmt: skip
        state = np.zeros(memory.STATE_SIZE, np.int64)
        state[[*_KEPT_TIMES, memory.LABEL_TIME]] = NEVER
        state[[memory.UNUSED, memory.FREED]] = -1
        self._memory = Memory(
            np.array(numbers, np.int64), state, np.zeros(len(memory.COUNTS), np.int64),
            np.zeros((0, memory.TAIL + 2), np.int64), np.recarray(0, memory.PARTITION), np.recarray(0, memory.ITEM),
            np.full(16, -1, np.int32), np.recarray((3, 0), memory.ENTRY), np.recarray(0, memory.LEFT),
        )  # fmt: skip
        self._values = np.empty(0, object)
        self._formats, self._answers = np.zeros(0, np.int8), np.zeros(0, np.int32)
        """The bytes of each held event, the number of their format and the code of its answer, by slot."""

    @property
    def counts(self) -> dict[str, int]:
        """What happened to the records so far: see `memory.COUNTS`."""
        return dict(zip(memory.COUNTS, self._memory.counts.tolist(), strict=True))

    def is_of_labels(self, partition: PartitionId) -> bool:
        """Whether a partition belongs to the topic of labels."""
        return bool(partition.topic) and partition.topic == self._options.label_topic

    @property
    def silent(self) -> list[PartitionId]:
        """The partitions for whose labels windows have waited longer than the settings expect."""
        m = self._memory
        times = dict(zip(self._numbers, m.partitions["label_time"].tolist(), strict=True))
        return self._silent(times, int(m.state[memory.STREAM_TIME])) if m.rules[memory.WAITS_FOR_LABELS] else []

    def _silent(self, times: Mapping[PartitionId, int], stream_time: int) -> list[PartitionId]:
        of_labels = {p: time for p, time in times.items() if self.shares_topic or self.is_of_labels(p)}
        known = {p: time for p, time in of_labels.items() if time > NEVER} or of_labels
        return [p for p, time in known.items() if time < stream_time - self._options.max_silence]

    @property
    def is_amid_record(self) -> bool:
        """Whether the next record is applied in part: windows that it closes are still to be learned."""
        return bool(self._memory.state[memory.STAGE])

    def add_partition(self, partition: PartitionId) -> None:
        """Add a partition. Its index is the number of partitions before."""
        m = self._memory
        self._numbers[partition] = len(self._numbers)
        rank = partition.number + FIRST_LABEL_RANK * self.is_of_labels(partition)
        own = np.rec.array([(rank, NEVER)], memory.PARTITION)
        tails = np.concatenate([m.tails, np.full((1, memory.TAIL + 2), NEVER)])
        self._memory = m._replace(partitions=np.concatenate([m.partitions, own]).view(np.recarray), tails=tails)

    def apply(
        self, records: Records, events: ReadEvents, labels: ReadEvents, answers: Answers
    ) -> tuple[int, JoinedEvents]:
        """Apply records, which were read as events and as labels. `answers` has the code of each record's answer.

        Returns how many were applied, and the events that are learned. No more leave at once than records are given, so
        both may be fewer than there are: call again.
        """
        joinable, slots = self._joinable(records, events, labels), np.full(len(records), -1)
        limit = min(max(len(records), MIN_CLOSED_EVENTS), MAX_CLOSED_EVENTS)
        end = self._apply(joinable, 0, limit, slots, records.values, answers)
        return end, self._take_left()

    def rebuild(self, records: Records, events: ReadEvents, labels: ReadEvents, answers: Answers) -> None:
        """Remember records that were applied before. Those of a partition come in order; partitions in any order."""
        joinable, slots, begin = self._joinable(records, events, labels), np.full(len(records), -1), 0
        self._memory.state[memory.REBUILDING] = 1
        while begin < len(records):
            begin = self._apply(joinable, begin, MAX_CLOSED_EVENTS, slots, records.values, answers)
            self._take_left()
            slots[:begin] = -1
        self._memory.state[memory.REBUILDING] = 0

    def _apply(
        self, records: Any, begin: int, limit: int, slots: NDArray[np.int64], values: ValueBuffer, answers: Answers
    ) -> int:
        while (end := memory.apply_records(self._memory, records, begin, limit, slots)) == begin:
            if self.is_amid_record:
                break
            self._grow()
        self._keep(slots, values)
        if answers is not None and len(kept := np.flatnonzero(slots >= 0)):
            self._answers[slots[kept]] = answers[kept]
        return int(end)

    def _joinable(self, records: Records, events: ReadEvents, labels: ReadEvents) -> Any:
        """Records as an array of `memory.ITEM`. Those that are neither events nor labels count for the time alone."""
        joinable = np.empty(len(records), memory.ITEM)
        joinable["time"], joinable["offset"], joinable["kind"] = records.timestamps, records.offsets, memory.OTHER
        joinable["partition"], joinable["state"] = records.of_each(self._numbers.__getitem__), memory.ASIDE
        for read, *kinds in ((events, memory.EVENT, memory.LABELLED), (labels, memory.WITHDRAWAL, memory.LABEL)):
            if len(read.labels):
                within = slice(bisect_left(read.records, len(records)))
                places, signs = read.records[within], read.labels[within]
                texts = read.ids
                ids = texts if isinstance(texts, EventIds) else EventIds.from_list([text or "" for text in texts])
                joinable["kind"][places], joinable["label"][places] = np.where(np.isnan(signs), *kinds), signs
                joinable["first_hash"][places], joinable["second_hash"][places] = ids.hashes(_SEED)[within].T
        return joinable.view(np.recarray)

    def state(self, following: Mapping[PartitionId, int]) -> JoinState:
        """What a head keeps of the join; `following` are the next offsets."""
        if self.stored:
            return self.stored
        m, partitions = self._memory, dict[PartitionId, PartitionState]()
        times = m.items["time"][m.items["state"] == memory.HELD]
        columns = m.tails.tolist(), m.partitions["label_time"].tolist(), memory.oldest_offsets(m, True).tolist()
        for p, tail, label_time, oldest in zip(self._numbers, *columns, strict=True):
            partitions[p] = PartitionState(tail, label_time, min(oldest, following[p]))
        stream_time, closed, dropped_until = m.state[_KEPT_TIMES].tolist()
        since = int(times.min()) if len(times) else None
        return JoinState(stream_time, closed, dropped_until, partitions, len(times), since, self._digest())

    def finish_rebuild(self) -> bool:
        """All that the stored state remembers was read again; returns whether it is the same."""
        assert self.stored is not None  # noqa: S101 - it is called once after `restore`
        stored, self.stored = self.stored, None
        return stored.digest == self._digest()

    def resume(self) -> list[PartitionId]:
        """Let windows close without partitions whose labels are silent, until their next one; returns which.

        Call it and `drop` after `restore`, before anything is brought back.
        """
        assert self.stored is not None  # noqa: S101 - see above
        partitions = self.stored.partitions
        silent = self._silent({p: each.label_time for p, each in partitions.items()}, self.stored.stream_time)
        resumed = {p: replace(partitions[p], label_time=FOREVER) for p in silent}
        self.stored = replace(self.stored, partitions=partitions | resumed)
        return silent

    def drop(self, following: Mapping[PartitionId, int]) -> int:
        """Forget everything that is remembered, and drop copies that come later; returns how many events were held."""
        assert self.stored is not None  # noqa: S101 - see above
        held, time = self.stored.held, max(self.stored.stream_time, self.stored.dropped_until)
        partitions = {p: replace(each, rebuild=following[p]) for p, each in self.stored.partitions.items()}
        self.stored = JoinState(self.stored.stream_time, self.stored.closed, time, partitions, 0, None, f"{0:016x}")
        self._memory.counts[memory.DROPPED] += held
        return held

    def restore(self, state: JoinState, partitions: Sequence[PartitionId], counts: Mapping[str, int]) -> None:
        """Continue from a head's state; `rebuild` brings back what is remembered, before records are applied."""
        self.stored = state
        for partition in partitions:
            self.add_partition(partition)
        m = self._memory
        m.state[_KEPT_TIMES] = state.stream_time, state.closed, state.dropped_until
        for i, partition in enumerate(partitions):
            if each := state.partitions.get(partition):  # a rollback may go back to before it was added
                m.tails[i], m.partitions["label_time"][i] = each.tail, each.label_time
        m.counts[:] = [counts[name] for name in memory.COUNTS]
        memory.find_label_time(m)

    def _digest(self) -> str:
        """A digest of the remembered records and their states, whatever the order in which they came."""
        m = self._memory
        used = m.items[m.items["state"] != memory.FREE]
        states = np.where(used["state"] == memory.LEARNED, memory.SETTLED, used["state"]).astype(np.uint64)
        total = m.partitions["rank"][used["partition"]].astype(np.uint64) << np.uint64(8) | states
        for part in ("offset", "time"):
            total = (total ^ used[part].astype(np.uint64)) * _PRIME
            total ^= total >> np.uint64(32)
        return f"{int((total * _PRIME).sum(dtype=np.uint64)):016x}"

    def _keep(self, slots: NDArray[np.int64], values: ValueBuffer) -> None:
        """Keep the bytes of the events that have these slots."""
        events = np.flatnonzero(slots >= 0)
        if not len(events):
            return
        begins, ends = values.begins[events], values.ends[events]
        first = int(begins.min())
        raw = bytes(values.data.data[first : int(ends.max())])
        cuts = zip((begins - first).tolist(), (ends - first).tolist(), strict=True)
        self._values[slots[events]] = np.fromiter((raw[i:j] for i, j in cuts), object, len(events))
        if values.format_numbers is not None:
            self._formats[slots[events]] = values.format_numbers[events]

    def _take_left(self) -> JoinedEvents:
        """The events that have left the memory."""
        m = self._memory
        out, items = m.out.view(np.ndarray)[: m.state[memory.OUT]], m.items.view(np.ndarray)  # faster than recarrays
        left, labels = out["slot"], out["label"]
        m.state[memory.OUT] = 0
        is_learned = ~np.isnan(labels)
        learned = left[is_learned]
        values, formats = ValueBuffer.from_values(self._values[learned].tolist()), self._formats[learned]
        values.format_numbers = formats if formats.any() else None
        own, numbers, offsets = list(self._numbers), items["partition"][learned], items["offset"][learned]
        answers = self._answers[learned]
        self._values[left], self._formats[left], self._answers[left] = None, 0, NOT_ASKED
        return JoinedEvents(values, labels[is_learned], lambda i: (own[numbers[i]], int(offsets[i])), answers)

    def _grow(self) -> None:
        """Make room for a quarter more items."""
        old = self._memory
        before = len(old.items)
        count = before + max(_FEWEST_SLOTS, before // 4)
        items, heaps = np.recarray(count, memory.ITEM), np.recarray((3, count), memory.ENTRY)
        items[:before], heaps[:, :before] = old.items, old.heaps
        items["next"][before:], items["state"][before:] = np.arange(before + 1, count + 1), memory.FREE
        items["next"][-1] = old.state[memory.UNUSED]
        old.state[memory.UNUSED] = before
        out = np.recarray(count + MAX_CLOSED_EVENTS, memory.LEFT)
        self._memory = old._replace(items=items, heaps=heaps, out=out)
        if len(old.table) <= count:
            self._memory = self._memory._replace(table=np.full(1 << count.bit_length(), -1, np.int32))
            memory.move_table(old.table, self._memory)
        self._values = np.concatenate([self._values, np.empty(count - before, object)])
        self._formats = np.concatenate([self._formats, np.zeros(count - before, np.int8)])
        self._answers = np.concatenate([self._answers, np.full(count - before, NOT_ASKED, np.int32)])
