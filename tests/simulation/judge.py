"""Compares every accepted head with the plain fold of the records that it covers."""

import copy
import hashlib
import json
import struct
from typing import Any, NamedTuple, Protocol

from service.learning.join.memory import OUTCOMES
from service.learning.records import PartitionId
from tests.join_oracle import JoinOracle, JoinSettings
from tests.oracle import Classes, Fold
from tests.simulation.world import FIRST_LABEL_RANK, Record, Redis, Topic, Violation, number_of

Runs = list[tuple[int, int, int]]
Settings = list[tuple[dict[int, int], Any]]
"""The identities of a model in their order, each with the offsets by partition at which it began."""


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
    def from_head(cls, head: Any) -> "dict[str, Candidate]":
        candidates = {}
        for name, state in head.get("candidates", {}).items():
            identity, since = state["identity"], {_number(p): offset for p, offset in state["since"].items()}
            margins = tuple(identity.get("margin", (0.0, 0.0)))
            candidates[name] = cls(since, identity["eta"], identity["half_life"], margins)
        return candidates


class State:
    """A plain fold over runs of a log, and the folds of its candidates."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.rejected = self.amended = 0
        self.next: dict[int, int] = {}
        self.candidates: dict[str, tuple[Candidate, Fold]] = {}
        self.join: JoinOracle | None = None
        """Says which events are learned with which labels, if labels come later."""

    def copy(self) -> "State":
        new = State(_copied(self.fold))
        new.join = copy.deepcopy(self.join)
        new.candidates = {name: (candidate, _copied(fold)) for name, (candidate, fold) in self.candidates.items()}
        new.rejected, new.amended, new.next = self.rejected, self.amended, dict(self.next)
        return new

    def learn(
        self, topic: Topic, runs: Runs, settings: Settings, expected: dict[str, Candidate], starts: dict[int, int]
    ) -> "State":
        new = self.copy()
        new.candidates = {
            name: (expected[name], fold)
            for name, (candidate, fold) in new.candidates.items()  # partitions may have been added since
            if name in expected and candidate._replace(since=starts | candidate.since) == expected[name]
        }
        for p, start, end in runs:
            if new.next.setdefault(p, start) != start:
                raise Violation(f"a run of partition {p} begins at {start}, not at {new.next[p]}")
            records = topic.partitions[p].records if p < len(topic.partitions) else {}
            for offset in range(start, end):
                new.next[p] = offset
                new.begin(settings, expected, starts)
                record = records.get(offset)
                for value in new.due(topic, record) if record else ():
                    new.fold.learn(value)
                    for _, fold in new.candidates.values():
                        if not new.fold.diverged:
                            fold.learn(value)
                new.rejected += record is not None and not record.good
            new.next[p] = end
        new.begin(settings, expected, starts)
        return new

    def due(self, topic: Topic, record: Record) -> list[bytes]:
        """The events to learn at this record, with their labels."""
        if self.join is None or record.joined is None:
            return [record.value] if record.good and record.value is not None else []
        self.join.apply(record.joined)
        due, values = self.join.learned, list[bytes]()
        self.join.learned = []
        for rank, offset, label in due:
            number = 2 * (rank % FIRST_LABEL_RANK) + (rank >= FIRST_LABEL_RANK)
            event = json.loads(topic.partitions[number].records[offset].value or b"")
            values.append(json.dumps(event | {"label": label}).encode())
        return values

    def begin(self, settings: Settings, expected: dict[str, Candidate], starts: dict[int, int]) -> None:
        """Take over the settings, and add the candidates, that begin at the present offsets."""
        for since, identity in settings[self.amended + 1 :]:
            if all(self.next.get(p, starts[p]) >= offset for p, offset in since.items()):
                self.fold.eta, self.fold.half_life = identity["eta"], identity["half_life"]
                self.fold.margins = identity.get("margin", (0.0, 0.0))
                self.amended += 1
        for name in expected.keys() - self.candidates.keys():
            candidate = expected[name]
            if all(self.next.get(p, starts[p]) >= offset for p, offset in candidate.since.items()):
                fold = Fold(candidate.eta, candidate.half_life, self.fold.scaled, candidate.margins, self.fold.clip)
                fold.sums = dict(self.fold.sums)  # values are scaled by the model's
                self.candidates[name] = candidate, fold


def _copied(fold: Fold) -> Fold:
    copied = copy.copy(fold)
    copied.w = dict(fold.w)
    return copied


class JudgedHead(NamedTuple):
    """An accepted head that is correct."""

    version: int
    next: dict[int, int]
    base: State
    """The state of the last kept version, from which the runs of its children continue."""
    runs: Runs
    """The runs since the last kept version."""
    state: State
    topics: list[Topic]
    """The logs from which the head and its ancestors may have been learned: two can begin with the same records."""
    source: Any
    """The source in the head. No child may have another one."""
    settings: Settings


class Judge:
    """Checks each head when it is accepted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.heads: dict[str, JudgedHead] = {}

    def _array(self, array: Any, columns: int) -> list[float]:
        state = self._world.redis.state
        base = b"".join(state[f"b:{name}"] for name in array["base"])
        values = [*struct.unpack(f"<{len(base) // 8}d", base)]
        values += [0.0] * (columns - len(values))
        for name in array["deltas"]:
            for column, value in struct.iter_unpack("<Id", state[f"b:{name}"]):
                values[column] = value
        return values

    def _weights(self, head: Any, name: str) -> list[float]:
        """An array of weights; with classes, the weights of a column are next to each other."""
        labels = head["identity"]["labels"] or ()
        names = [f"{name}/{k}" for k in range(len(labels))] if len(labels) > 2 else [name]
        arrays = [self._array(head["arrays"][array_name], head["columns"]) for array_name in names]
        return [weight for column in zip(*arrays, strict=True) for weight in column]

    def check_accepted(self, previous: str, data: bytes, cut: Runs | None) -> None:
        """Raise Violation unless this head, just accepted in place of `previous`, is correct.

        `cut` are the runs that the head records if it is kept; None if they are known only for a single partition.
        """
        redis, digest = self._world.redis, hashlib.sha256(data).hexdigest()
        head = json.loads(data)
        if redis.state["head"] != data or redis.state["digest"].decode() != digest:
            raise Violation("the store holds a different head from the one that it accepted")
        if head["parent"] != previous:
            raise Violation(f"accepted on {previous[:6]}, which is not its parent {head['parent'][:6]}")
        redis.check_blobs()
        if missing := [k["version"] for k in head["kept"] if f"v:{k['version']}" not in redis.state]:
            raise Violation(f"kept versions {missing} are missing")
        empty, settings = _empty_state(head["identity"]), _settings(head)
        if previous and previous not in self.heads:
            raise Violation(f"{previous[:6]} was continued, but no process of this release wrote it")
        source = head["source"]
        parent = (
            self.heads[previous]
            if previous
            else JudgedHead(0, {}, empty, [], empty, self._world.topics_of(source), source, settings[:1])
        )
        if head["source"] != parent.source:
            raise Violation(f"a head of {parent.source} was continued in {head['source']}")
        offsets = {_number(p): position["offset"] for p, position in head["next"].items()}
        order = [_number(p) for p in head["covered"]]
        if settings not in (parent.settings, [*parent.settings, (parent.next, head["identity"])]):
            raise Violation(f"settings {settings} follow {parent.settings}")
        if head["version"] != parent.version + 1:
            raise Violation(f"version {head['version']} follows version {parent.version}")
        for p, offset in parent.next.items():
            if offsets.get(p, -1) < offset:
                raise Violation(f"partition {p} went back from {offset} to {offsets.get(p)}")
        stored = b"".join(redis.state[f"b:{name}"] for name in head["run_blobs"])
        runs: Runs = [*struct.iter_unpack("<IQQ", stored), *map(tuple, head["runs"])]
        runs = [(order[i], start, end) for i, start, end in runs]
        cut = None if cut is None else [(order[i], start, end) for i, start, end in cut]
        is_kept = bool(head["kept"]) and head["kept"][-1]["version"] == head["version"]
        if is_kept:
            if runs:
                raise Violation("a kept version has runs of its own")
            runs = [(p, parent.base.next.get(p, 0), end) for p, end in offsets.items()] if cut is None else cut
            if cut is None and len(offsets) > 1:
                raise Violation("nobody knows in which order a kept version learned")
        difference, matching, end_state = "", list[Topic](), empty
        candidates = Candidate.from_head(head)
        starts = {_number(p): ranges[0][0] for p, ranges in head["covered"].items()}
        for name, (candidate, _) in parent.state.candidates.items():
            continued = candidates.get(name, candidate)
            same = continued._replace(since={}) == candidate._replace(since={})
            if same and not candidate.since.items() <= continued.since.items():
                raise Violation(f"candidate {name} begins again at {continued.since}, its settings being the same")
        for topic in parent.topics:
            continuation = _continuation(parent.runs, runs)
            state, to_learn = (parent.base, runs) if continuation is None else (parent.state, continuation)
            state = state.learn(topic, to_learn, settings, candidates, starts)
            differs = self._differs(head, offsets, state)
            if mismatch := differs or self._missing_letter(topic, head["covered"], parent.next):
                difference = mismatch
            else:
                matching, end_state = [*matching, topic], state
        if not matching:
            raise Violation(f"version {head['version']}: {difference}")
        base, new_runs = (end_state, list[tuple[int, int, int]]()) if is_kept else (parent.base, runs)
        self.heads[digest] = JudgedHead(head["version"], offsets, base, new_runs, end_state, matching, source, settings)

    def _differs(self, head: Any, offsets: dict[int, int], state: State) -> str:
        """Describe how the head differs from this state; "" if it does not."""
        fold, counts = state.fold, head["counts"]
        for p, ranges in head["covered"].items():
            offset, end = offsets[_number(p)], state.next.get(_number(p), ranges[0][0])
            if not ranges[-1][1] == offset == end:
                return f"partition {p} covers {ranges}, is at {offset}, runs end at {end}"
        names = [n for name in head["names"] for n in json.loads(self._world.redis.state[f"b:{name}"])]
        if names != list(fold.w):
            return f"names are {names}, not {list(fold.w)}"
        newest = ("newest_count", "newest_mean", "newest_m2") if fold.clip else ()
        for i, name in enumerate(("count", "mean", "m2", *newest) if fold.scaled else ()):
            sums = [fold.sums.get(feature, (0.0,) * 6)[i] for feature in ("", *fold.w)]
            if (scale := self._array(head["arrays"][name], head["columns"])) != sums:
                return f"{name} is {scale}, not {sums}"
        if isinstance(fold, Classes) and counts["confusion"] != fold.confusion:
            return f"the confusion is {counts['confusion']}, not {fold.confusion}"
        if (rejected := sum(counts["rejected"].values())) != state.rejected:
            return f"{rejected} are rejected, not {state.rejected}"
        for name, candidate_state in head.get("candidates", {}).items():
            if name not in state.candidates:
                return f"candidate {name} began nowhere"
            candidate = state.candidates[name][1]
            if (candidate_state["diverged_at"] is not None) != candidate.diverged:
                return f"candidate {name} diverged at {candidate_state['diverged_at']}"
            if difference := self._fold_differs(head, f"{name}/", candidate_state["counts"], candidate, names):
                return f"candidate {name}: {difference}"
        if state.join:
            held, outcomes = head["join"]["held"], {k: n for k in OUTCOMES if (n := counts["join"][k])}
            if (held, outcomes) != (figures := (len(state.join.held()), dict(state.join.counts))):
                return f"{held} events are held after {outcomes}, not {figures}"
        return self._fold_differs(head, "", counts, fold, names)

    def _fold_differs(self, head: Any, prefix: str, counts: Any, fold: Fold, names: list[str]) -> str:
        """Describe how weights, their recent average or counts differ from the fold; "" if they do not."""
        k = len(fold.labels) if isinstance(fold, Classes) else 1

        def by_column(values: list[float]) -> list[float]:
            """The values by column of these names; 0 if the fold does not have the name."""
            weights_by_name = {n: values[k * i : k * i + k] for i, n in enumerate(("", *fold.w))}
            return [v for n in ("", *names) for v in weights_by_name.get(n) or [0.0] * k]

        if (w := self._weights(head, f"{prefix}w")) != (expected := by_column(fold.vector)):
            return f"weights are {w}, not {expected}"
        if n := fold.half_life:
            fraction, expected = 0.5 ** (fold.events / n % 900), by_column(fold.recent)
            recent = [a - b * fraction for a, b in zip(w, self._weights(head, f"{prefix}late"), strict=True)]
            if any(abs(a - b) > 1e-9 * max(1.0, fold.limit**0.5) for a, b in zip(recent, expected, strict=True)):
                return f"the recent average is {recent}, not {expected}"
        table = counts["confusion"]
        events = sum(map(sum, table))
        figures = events, counts["mistakes"], counts["updates"], events - sum(row[i] for i, row in enumerate(table))
        if figures != (right := (fold.events, fold.mistakes, fold.updates, fold.wrong)):
            return f"counts are {figures}, not {right}"
        return ""

    def _missing_letter(self, topic: Topic, covered: Any, previous: dict[int, int]) -> str:
        """Name a bad record that this head covers and its parent did not, if its dead letter was not acknowledged."""
        for p, ranges in covered.items():
            number = _number(p)
            records = topic.partitions[number].records if number < len(topic.partitions) else {}
            place = p if topic.joined else f"{self._world.name}-{p}"
            for start, end in ranges:
                for offset in range(max(start, previous.get(number, 0)), end):
                    record = records.get(offset)
                    letters = self._world.letters.get(f"{place}-{offset}".encode(), ())
                    if record and not record.good and record.value not in letters:
                        return f"no dead letter of {p}:{offset} was acknowledged"
        return ""

    def covers_log(self) -> bool:
        """Whether the current head covers the log."""
        digest = self._world.redis.current
        ends = {p: part.end for p, part in enumerate(self._world.topics[-1].partitions)}
        return digest in self.heads and self.heads[digest].next == ends

    def diverges(self, digest: str) -> bool:
        """Whether the model of this head diverges at one of the next events."""
        head = self.heads[digest]
        if head.state.join:  # the event may be a held one
            return bool(head.state.fold.eta > 1e10)
        records = [
            part.records.get(head.next.get(p, 0)) for topic in head.topics for p, part in enumerate(topic.partitions)
        ]
        folds = [head.state.copy().fold.fold([r.value]) for r in records if r and r.good and r.value]
        return any(fold.diverged for fold in folds)

    def check_letters(self) -> None:
        """Raise Violation if there is a dead letter of something other than a bad record."""
        for key, values in self._world.letters.items():
            place, _, text = key.decode().rpartition("-")
            joined = place.startswith(("events-", "labels-"))
            p, offset = _number(place if joined else place.rpartition("-")[2]), int(text)
            records = [t.partitions[p].records.get(offset) for t in self._world.topics if p < len(t.partitions)]
            bad_values = {record.value for record in records if record and not record.good}
            if not values <= bad_values:
                raise Violation(f"dead letter {key.decode()} is not of a bad record")


def _empty_fold(identity: Any) -> Fold:
    """The fold of a model of this identity before its first event."""
    eta, half_life, scaled = identity["eta"], identity["half_life"], identity["scale"] == "standard"
    labels = identity["labels"] or ()
    if len(labels) > 2:
        return Classes(labels, eta, half_life, scaled=scaled, clip=identity.get("clip"))
    return Fold(eta, half_life, scaled, identity.get("margin", (0.0, 0.0)), identity.get("clip"))


def _empty_state(identity: Any) -> State:
    state = State(_empty_fold(identity))
    if join := identity.get("join"):
        default, window = join["default_label"], join["window"]
        state.join = JoinOracle(JoinSettings(
            FIRST_LABEL_RANK, 1, window, window // 100, default, join["waits_for_labels"], join["max_held"],
            horizon=86_400_000,
        ))  # fmt: skip
    return state


def _number(text: str) -> int:
    return number_of(PartitionId.from_text(text))


def _settings(head: Any) -> Settings:
    amendments = head.get("amendments", [])
    identities = [*(amendment["identity"] for amendment in amendments), head["identity"]]
    since = [{_number(p): offset for p, offset in amendment["since"].items()} for amendment in amendments]
    return list(zip([{}, *since], identities, strict=True))


def _continuation(before: Runs, runs: Runs) -> Runs | None:
    """The runs after `before`, whose last run may have become longer; None if `runs` does not begin with them."""
    if not before:
        return runs
    (p, start, end), last = before[-1], len(before) - 1
    if runs[:last] != before[:last] or len(runs) <= last or runs[last][:2] != (p, start) or runs[last][2] < end:
        return None
    return [(p, end, runs[last][2]), *runs[last + 1 :]]
