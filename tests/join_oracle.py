"""The join of late labels in plain Python: slow, and its own, to compare with `service.learning.join`.

It keeps the remembered records of each id in a sorted list, and decides about the whole list when a record comes.
"""

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

NEVER = -math.inf


class JoinRecord(NamedTuple):
    """A record: an event (with or without label), a label, a withdrawal (a label that is None), or something else."""

    partition: int
    """Its place in the order of partitions, labels after events."""
    offset: int
    time: int
    id: str
    kind: str
    """event, label or other."""
    label: float | None = None


class JoinSettings(NamedTuple):
    """The settings of a join. Times are integers of any unit."""

    event_partitions: int
    label_partitions: int
    """0 if events and labels share a topic."""
    window: int
    step: int = 1
    default_label: float | None = None
    waits_for_labels: bool = False
    max_held: int | None = None
    neighbours: int = 10
    horizon: int = 400
    gap: int = 0
    """The most time between two events of a chain; at least two windows."""


class State(Enum):
    """What is known of a remembered record."""

    NEW, HELD, PENDING, LEARNED, SETTLED = range(5)


@dataclass(order=True)
class Item:
    """A remembered record."""

    key: tuple[int, int, int]
    record: JoinRecord = field(compare=False)
    state: State = field(default=State.NEW, compare=False)

    @property
    def time(self) -> int:
        return self.key[0]

    @property
    def is_event(self) -> bool:
        return self.record.kind == "event"

    @property
    def has_label(self) -> bool:
        return self.record.kind == "label" or self.record.label is not None


class Chain(NamedTuple):
    """Repeated events of an id, and the time of the last one."""

    events: list[Item]

    @property
    def root(self) -> Item:
        return self.events[0]

    def labels(self, items: Iterable[Item], window: int) -> list[Item]:
        begin, end = self.root.time - window, self.events[-1].time + window
        return [x for x in items if x is not self.root and x.has_label and begin <= x.time <= end]


class JoinOracle:
    """Events and labels that are remembered, and what happened so far."""

    def __init__(self, settings: JoinSettings) -> None:
        self.settings = settings
        self.ids: dict[str, list[Item]] = defaultdict(list)
        self.aside: list[JoinRecord] = []
        self.stream_time = self.closed = self.dropped_until = NEVER
        self.tails: dict[int, list[int]] = defaultdict(list)
        self.label_tails: dict[int, list[int]] = defaultdict(list)
        self.label_times: dict[int, float] = {}
        self.next: Counter[int] = Counter()
        self.learned: list[tuple[int, int, float]] = []
        """Partition, offset and label of each learned event, in order."""
        self.counts: Counter[str] = Counter()

    def apply(self, record: JoinRecord) -> None:
        """Apply the next record."""
        self.next[record.partition] = record.offset + 1
        before = self.closed
        self._pass_time(record)
        self._close()
        for each in sorted(self.aside, key=lambda r: (r.time, r.partition, r.offset)):
            if each.time <= self.stream_time + self.settings.horizon:
                self.aside.remove(each)
                self._take(each)
        if record.kind != "other":
            self._take(record)
        if self.closed > before:
            self._forget()
        self._make_room()

    def held(self) -> set[tuple[int, int]]:
        """Partition and offset of each held event."""
        items = (item for items in self.ids.values() for item in items if item.state is State.HELD)
        return {item.key[1:] for item in items}

    def _is_of_labels(self, record: JoinRecord) -> bool:
        if self.settings.label_partitions:
            return record.partition >= self.settings.event_partitions
        return record.kind == "label"

    def _pass_time(self, record: JoinRecord) -> None:
        settings, tail = self.settings, self.tails[record.partition]
        tail.append(record.time)
        if len(tail) >= 2:
            reached: float = min(tail[-2:])
            if reached > self.stream_time + settings.window:
                reached = min(tail[-settings.neighbours :]) if len(tail) >= settings.neighbours else NEVER
            self.stream_time = max(self.stream_time, reached)
        if self._is_of_labels(record):
            labels = self.label_tails[record.partition]
            labels.append(record.time)
            if len(labels) >= 2:
                now = self.label_times.get(record.partition, NEVER)
                self.label_times[record.partition] = max(now, min(labels[-2:]))
        target = self.stream_time
        if settings.waits_for_labels:
            target = min([target, *(self.label_times.values() or [NEVER])])
        if target > NEVER:
            self.closed = max(self.closed, target - target % settings.step)

    def _count(self, outcome: str) -> None:
        self.counts[outcome] += 1

    def _learn(self, item: Item, label: float | None) -> None:
        assert label is not None
        self.learned.append((*item.key[1:], label))

    def _chains(self, items: Iterable[Item]) -> list[Chain]:
        chains, gap = list[Chain](), max(2 * self.settings.window, self.settings.gap)
        for item in items:
            if item.is_event:
                if chains and item.time - chains[-1].events[-1].time <= gap:
                    chains[-1].events.append(item)
                else:
                    chains.append(Chain([item]))
        return chains

    def _take(self, record: JoinRecord) -> None:
        settings = self.settings
        reach = max(2 * settings.window, settings.gap) + settings.window
        if record.time > self.stream_time + settings.horizon:
            self.aside.append(record)
            if self.stream_time > NEVER:
                self._count("set_aside")
        elif record.time < self.closed - reach:
            self._count("expired" if record.kind == "event" else "unknown")
        else:
            item = Item((record.time, record.partition, record.offset), record)
            insort(self.ids[record.id], item)
            self._decide(record.id, item)

    def _fate(self, chain: Chain, deciding: list[Item]) -> str:
        root, settings = chain.root, self.settings
        if root.time + settings.window < self.closed:
            return "expired"
        if root.time <= self.dropped_until:
            return "dropped"
        if any(x.record.label is None for x in deciding if not x.is_event):
            return "withdrawn"
        if settings.default_label is None and (root.has_label or deciding):
            return "joined"
        return "held"

    def _deciding(self, chain: Chain, labels: Iterable[Item]) -> list[Item]:
        """The labels of a chain that decide about its first event."""
        settings, root = self.settings, chain.root
        return [
            x
            for x in labels
            if settings.default_label is None or x.record.label is None or abs(x.time - root.time) <= settings.window
        ]

    def _decide(self, id_: str, fresh: Item | None) -> None:
        """Decide about all records of an id, after one was added."""
        items = self.ids[id_]
        chains = self._chains(items)
        for chain in chains:
            self._decide_chain(chain, chain.labels(items, self.settings.window), fresh)
        for item in self._alone(items, chains):
            if item is fresh or item.state is State.PENDING:
                item.state = State.SETTLED
                if item.time + self.settings.window <= self.dropped_until:
                    self._count("labels_dropped")
                elif item.time + 2 * self.settings.window < self.closed:
                    self._count("unknown")
                else:
                    item.state = State.PENDING

    def _alone(self, items: Iterable[Item], chains: Iterable[Chain]) -> Iterator[Item]:
        """The labels that belong to no event."""
        w = self.settings.window
        spans = [(chain.root.time - w, chain.events[-1].time + w) for chain in chains]
        return (x for x in items if not x.is_event and not any(a <= x.time <= b for a, b in spans))

    def _decide_chain(self, chain: Chain, labels: list[Item], fresh: Item | None) -> None:
        root, deciding, used = chain.root, self._deciding(chain, labels), None
        fate = self._fate(chain, deciding)
        was_learned = any(x.state is State.LEARNED for x in chain.events[1:])
        if fate == "held":
            root.state = State.HELD
        elif root is fresh or root.state is State.HELD:
            usable = [x for x in deciding if x is fresh or x.state in (State.PENDING, State.HELD)]
            root.state = State.SETTLED if fate != "joined" else State.LEARNED
            if fate != "joined":
                self._count("events_withdrawn" if fate == "withdrawn" else fate)
            elif was_learned:
                self._count("repeated")
            elif root.has_label:
                self._learn(root, root.record.label)
            elif usable:
                used = usable[0]
                self._learn(root, used.record.label)
                self._count("joined")
            else:
                self._count("repeated")
        became_labels = []
        for event in chain.events[1:]:
            if event is fresh or event.state is State.HELD:
                became_labels.append(event)
                event.state = State.SETTLED
                self._count("as_label" if event.has_label else "repeated")
            elif event.state is State.LEARNED:
                event.state = State.SETTLED
        for label in labels:
            if label is not fresh and label.state is not State.PENDING and label not in became_labels:
                continue
            label.state = State.PENDING if fate == "held" and label in deciding else State.SETTLED
            if label.state is State.SETTLED and label is not used:
                names = {"held": "late", "expired": "late", "joined": "second", "dropped": "labels_dropped"}
                self._count(names.get(fate, fate))

    def _close(self) -> None:
        """Learn or expire the events whose windows are over, in their order."""
        w, default = self.settings.window, self.settings.default_label
        over = list[tuple[Item, list[Item]]]()
        for items in self.ids.values():
            for chain in self._chains(items):
                if chain.root.state is State.HELD and chain.root.time + w < self.closed:
                    over.append((chain.root, [x for x in chain.labels(items, w) if x.state is State.PENDING]))
        for root, labels in sorted(over, key=lambda pair: pair[0]):
            root.state = State.SETTLED
            if default is None:
                self._count("expired")
                continue
            own = [root] if root.record.label is not None else []
            candidates = sorted([*own, *labels])
            self._learn(root, candidates[0].record.label if candidates else default)
            for i, label in enumerate(candidates):
                if label is not root:
                    label.state = State.SETTLED
                    self._count("second" if i else "joined")
        for items in self.ids.values():
            for item in self._alone(items, self._chains(items)):
                if item.state is State.PENDING and item.time + 2 * w < self.closed:
                    item.state = State.SETTLED
                    late = any(x.is_event and w < item.time - x.time <= 2 * w for x in items)
                    self._count("late" if late else "unknown")

    def _forget(self) -> None:
        reach = max(2 * self.settings.window, self.settings.gap) + self.settings.window
        kept = {id_: [item for item in items if item.time >= self.closed - reach] for id_, items in self.ids.items()}
        self.ids = defaultdict(list, {id_: items for id_, items in kept.items() if items})
        first: dict[int, int] = {}
        for items in self.ids.values():
            for _, partition, offset in (item.key for item in items):
                first[partition] = min(first.get(partition, offset), offset)
        for record in list(self.aside):
            if record.offset < first.get(record.partition, self.next[record.partition]):
                self.aside.remove(record)
                self._count("forgotten")

    def _make_room(self) -> None:
        w = self.settings.window
        while self.settings.max_held is not None:
            held = [x for items in self.ids.values() for x in items if x.state is State.HELD]
            waiting = [
                x for items in self.ids.values() for x in self._alone(items, self._chains(items))
                if x.state is State.PENDING
            ]  # fmt: skip
            if len(held) + len(waiting) <= self.settings.max_held:
                return
            self.dropped_until = min([x.time for x in held] + [x.time + w for x in waiting])
            for id_ in list(self.ids):
                self._decide(id_, None)
