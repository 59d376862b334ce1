"""Compares every accepted head with the plain fold of the records that it covers."""

import copy
import hashlib
import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from tests.oracle import Classes, Fold
from tests.simulation.world import Redis, Topic, Violation

Runs = list[tuple[int, int, int]]


class World(Protocol):
    """The input of the judge: the simulated world, or a record of a real one."""

    name: str
    redis: Redis
    topics: list[Topic]
    letters: dict[bytes, set[bytes | None]]

    def topics_of(self, source: Any) -> list[Topic]: ...


class Candidate(NamedTuple):
    """A candidate in a head: where it began, and the settings of its fold."""

    since: dict[int, int]
    eta: float
    half_life: int | None
    margins: tuple[float, float]

    @classmethod
    def all_of(cls, said: Any) -> "dict[str, Candidate]":
        found = {}
        for name, one in said.get("candidates", {}).items():
            identity, since = one["identity"], {int(p): offset for p, offset in one["since"].items()}
            margins = tuple(identity.get("margin", (0.0, 0.0)))
            found[name] = cls(since, identity["eta"], identity["half_life"], margins)
        return found


class State:
    """A plain fold over runs of a log, and the folds of its candidates."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.rejected = 0
        self.next: dict[int, int] = {}
        self.candidates: dict[str, tuple[Candidate, Fold]] = {}

    def copy(self) -> "State":
        new = State(_copied(self.fold))
        new.candidates = {name: (one, _copied(fold)) for name, (one, fold) in self.candidates.items()}
        new.rejected, new.next = self.rejected, dict(self.next)
        return new

    def learn(
        self, topic: Topic, runs: Iterable[tuple[int, int, int]], wanted: dict[str, Candidate], starts: dict[int, int]
    ) -> "State":
        new = self.copy()
        new.candidates = {
            name: (wanted[name], fold)
            for name, (one, fold) in new.candidates.items()  # partitions may have been added since
            if name in wanted and one._replace(since=starts | one.since) == wanted[name]
        }
        for p, start, to in runs:
            if new.next.setdefault(p, start) != start:
                raise Violation(f"a run of partition {p} begins at {start}, not at {new.next[p]}")
            records = topic.partitions[p].records if p < len(topic.partitions) else {}
            for offset in range(start, to):
                new.next[p] = offset
                new.add_due(wanted, starts)
                if (record := records.get(offset)) and record.good:
                    assert record.value is not None
                    new.fold.learn(record.value)
                    for _, fold in new.candidates.values():
                        if not new.fold.diverged:
                            fold.learn(record.value)
                new.rejected += record is not None and not record.good
            new.next[p] = to
        new.add_due(wanted, starts)
        return new

    def add_due(self, wanted: dict[str, Candidate], starts: dict[int, int]) -> None:
        """Add the candidates that begin here."""
        for name in wanted.keys() - self.candidates.keys():
            one = wanted[name]
            if all(self.next.get(p, starts[p]) >= offset for p, offset in one.since.items()):
                fold = Fold(one.eta, one.half_life, self.fold.scaled, one.margins)
                fold.sums = dict(self.fold.sums)  # values are scaled by the model's
                self.candidates[name] = one, fold


def _copied(fold: Fold) -> Fold:
    new = copy.copy(fold)
    new.w = dict(fold.w)
    return new


class Judged(NamedTuple):
    """An accepted head that is correct."""

    version: int
    next: dict[int, int]
    begun: State
    """The state of the last kept version, from which the runs of its children continue."""
    runs: Runs
    """The runs since the last kept version."""
    state: State
    topics: list[Topic]
    """The logs that it and its ancestors may have been learned from: two can begin with the same records."""
    source: Any
    """The source in the head. No child may have another one."""


class Judge:
    """Checks each head when it is accepted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.known: dict[str, Judged] = {}

    def _array(self, array: Any, columns: int) -> list[float]:
        state = self._world.redis.state
        base = b"".join(state[f"b:{name}"] for name in array["base"])
        values = [*struct.unpack(f"<{len(base) // 8}d", base)]
        values += [0.0] * (columns - len(values))
        for name in array["deltas"]:
            for column, value in struct.iter_unpack("<Id", state[f"b:{name}"]):
                values[column] = value
        return values

    def _weights(self, said: Any, name: str) -> list[float]:
        """An array of weights; with classes, the weights of a column are next to each other."""
        labels = said["identity"]["labels"] or ()
        names = [f"{name}/{k}" for k in range(len(labels))] if len(labels) > 2 else [name]
        found = [self._array(said["arrays"][one], said["columns"]) for one in names]
        return [weight for column in zip(*found, strict=True) for weight in column]

    def accepted(self, before: str, head: bytes, cut: Runs | None) -> None:
        """Raise Violation unless this head, just accepted in place of `before`, is correct.

        `cut` are the runs that it records if it is kept; None if they are known only for a single partition.
        """
        redis, digest = self._world.redis, hashlib.sha256(head).hexdigest()
        said = json.loads(head)
        if redis.state["head"] != head or redis.state["digest"].decode() != digest:
            raise Violation("the store holds another head than it accepted")
        if said["parent"] != before:
            raise Violation(f"accepted on {before[:6]}, which is not its parent {said['parent'][:6]}")
        redis.whole()
        if missing := [k["version"] for k in said["kept"] if f"v:{k['version']}" not in redis.state]:
            raise Violation(f"kept versions {missing} are not there")
        begun = State(_nothing(said["identity"]))
        if before and before not in self.known:
            raise Violation(f"{before[:6]} was continued, and no process of this release wrote it")
        source = said["source"]
        parent = (
            self.known[before] if before else Judged(0, {}, begun, [], begun, self._world.topics_of(source), source)
        )
        if said["source"] != parent.source:
            raise Violation(f"a head of {parent.source} was continued in {said['source']}")
        ours = {int(p): position["offset"] for p, position in said["next"].items()}
        if said["version"] != parent.version + 1:
            raise Violation(f"version {said['version']} follows on {parent.version}")
        for p, offset in parent.next.items():
            if ours.get(p, -1) < offset:
                raise Violation(f"partition {p} went back from {offset} to {ours.get(p)}")
        stored = b"".join(redis.state[f"b:{name}"] for name in said["run_blobs"])
        runs: Runs = [*struct.iter_unpack("<IQQ", stored), *map(tuple, said["runs"])]
        is_kept = bool(said["kept"]) and said["kept"][-1]["version"] == said["version"]
        if is_kept:
            if runs:
                raise Violation("a kept version has runs of its own")
            runs = [(p, parent.begun.next.get(p, 0), to) for p, to in ours.items()] if cut is None else cut
            if cut is None and len(ours) > 1:
                raise Violation("nobody knows in which order a kept version learned")
        wrong, fitting, right = "", list[Topic](), begun
        with_ = Candidate.all_of(said), {int(p): ranges[0][0] for p, ranges in said["covered"].items()}
        for name, (one, _) in parent.state.candidates.items():
            now = with_[0].get(name, one)
            if now._replace(since={}) == one._replace(since={}) and not one.since.items() <= now.since.items():
                raise Violation(f"candidate {name} begins from scratch at {now.since}, and nothing of it is changed")
        for topic in parent.topics:
            state = parent.state.learn(topic, more, *with_) if (more := _more(parent.runs, runs)) is not None else None
            state = state or parent.begun.learn(topic, runs, *with_)
            if differs := self._differs(said, ours, state) or self._unsaid(topic, said["covered"], parent.next):
                wrong = differs
            else:
                fitting, right = [*fitting, topic], state
        if not fitting:
            raise Violation(f"version {said['version']}: {wrong}")
        begun, since = (right, list[tuple[int, int, int]]()) if is_kept else (parent.begun, runs)
        self.known[digest] = Judged(said["version"], ours, begun, since, right, fitting, source)

    def _differs(self, said: Any, ours: dict[int, int], state: State) -> str:
        """How the head differs from this state; "" if it does not."""
        fold, counts = state.fold, said["counts"]
        for p, ranges in said["covered"].items():
            if ranges[-1][1] != ours[int(p)] or state.next.get(int(p), ranges[0][0]) != ours[int(p)]:
                return f"partition {p} covers {ranges}, goes on at {ours[int(p)]}, runs end at {state.next.get(int(p))}"
        names = [n for name in said["names"] for n in json.loads(self._world.redis.state[f"b:{name}"])]
        if names != list(fold.w):
            return f"names are {names}, not {list(fold.w)}"
        for i, name in enumerate(("count", "mean", "m2") if fold.scaled else ()):
            sums = [fold.sums.get(feature, (0.0,) * 3)[i] for feature in ("", *fold.w)]
            if (scale := self._array(said["arrays"][name], said["columns"])) != sums:
                return f"{name} is {scale}, not {sums}"
        if isinstance(fold, Classes) and counts["confusion"] != fold.confusion:
            return f"the confusion is {counts['confusion']}, not {fold.confusion}"
        if (rejected := sum(counts["rejected"].values())) != state.rejected:
            return f"{rejected} are rejected, not {state.rejected}"
        for name, one in said.get("candidates", {}).items():
            if name not in state.candidates:
                return f"candidate {name} began nowhere"
            candidate = state.candidates[name][1]
            if (one["diverged_at"] is not None) != candidate.diverged:
                return f"candidate {name} diverged at {one['diverged_at']}"
            if differs := self._fold_differs(said, f"{name}/", one["counts"], candidate, names):
                return f"candidate {name}: {differs}"
        return self._fold_differs(said, "", counts, fold, names)

    def _fold_differs(self, said: Any, of: str, counts: Any, fold: Fold, names: list[str]) -> str:
        """How the weights, their recent average or the counts differ from those of the fold; "" if they do not."""
        k = len(fold.labels) if isinstance(fold, Classes) else 1

        def by_column(values: list[float]) -> list[float]:
            """The values by column of these names; 0 if the fold does not have the name."""
            found = {n: values[k * i : k * i + k] for i, n in enumerate(("", *fold.w))}
            return [v for n in ("", *names) for v in found.get(n) or [0.0] * k]

        if (w := self._weights(said, f"{of}w")) != (expected := by_column(fold.vector)):
            return f"weights are {w}, not {expected}"
        if n := fold.half_life:
            part, expected = 0.5 ** (fold.events / n % 900), by_column(fold.recent)
            recent = [a - b * part for a, b in zip(w, self._weights(said, f"{of}late"), strict=True)]
            if any(abs(a - b) > 1e-9 * max(1.0, fold.limit**0.5) for a, b in zip(recent, expected, strict=True)):
                return f"the recent average is {recent}, not {expected}"
        table = counts["confusion"]
        events = sum(map(sum, table))
        figures = events, counts["mistakes"], counts["updates"], events - sum(row[i] for i, row in enumerate(table))
        if figures != (right := (fold.events, fold.mistakes, fold.updates, fold.wrong)):
            return f"counts are {figures}, not {right}"
        return ""

    def _unsaid(self, topic: Topic, covered: Any, said: dict[int, int]) -> str:
        """A bad record that this head covers and its parent did not, without an acknowledged dead letter."""
        for p, ranges in covered.items():
            records = topic.partitions[int(p)].records if int(p) < len(topic.partitions) else {}
            for start, to in ranges:
                for offset in range(max(start, said.get(int(p), 0)), to):
                    record = records.get(offset)
                    letters = self._world.letters.get(f"{self._world.name}-{p}-{offset}".encode(), ())
                    if record and not record.good and record.value not in letters:
                        return f"no dead letter of {p}:{offset} was acknowledged"
        return ""

    def whole(self) -> bool:
        """Whether the current head covers the log."""
        digest = self._world.redis.current
        ends = {p: part.end for p, part in enumerate(self._world.topics[-1].partitions)}
        return digest in self.known and self.known[digest].next == ends

    def diverges(self, digest: str) -> bool:
        """Whether the model of this head diverges at one of the next events."""
        head = self.known[digest]
        parts = [
            (head.next.get(p, 0), part.records) for topic in head.topics for p, part in enumerate(topic.partitions)
        ]
        records = [found.get(at) for at, found in parts]
        after = [head.state.copy().fold.fold([r.value]) for r in records if r and r.good and r.value]
        return any(fold.diverged for fold in after)

    def letters(self) -> None:
        """Check that every dead letter is of a bad record."""
        for key, values in self._world.letters.items():
            p, offset = map(int, key.decode().rsplit("-", 2)[1:])
            there = [t.partitions[p].records.get(offset) for t in self._world.topics if p < len(t.partitions)]
            bad = {record.value for record in there if record and not record.good}
            if not values <= bad:
                raise Violation(f"dead letter {key.decode()} is of no bad record")


def _nothing(identity: Any) -> Fold:
    """The fold of a model of this identity before its first event."""
    own = identity["eta"], identity["half_life"], identity["scale"] == "standard"
    labels = identity["labels"] or ()
    return Classes(labels, *own) if len(labels) > 2 else Fold(*own, identity.get("margin", (0.0, 0.0)))


def _more(before: Runs, runs: Runs) -> Runs | None:
    """The runs after those `before`, the last of which may be longer now; None if they differ."""
    if not before:
        return runs
    (p, start, to), at = before[-1], len(before) - 1
    if runs[:at] != before[:at] or len(runs) <= at or runs[at][:2] != (p, start) or runs[at][2] < to:
        return None
    return [(p, to, runs[at][2]), *runs[at + 1 :]]
