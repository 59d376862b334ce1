"""Mutated events through the decoder and the learner, against the judge: `python -m tests.fuzz.events 1000000 [SEED]`.

Each seed is one stream under one identity. It asserts: no exception; a record is accepted if and only if the judge
accepts it, with its features, label and weight bit for bit, and its id; a rejected record has one of its faults as the
reason and changes only its counter, never a column; nothing depends on the division of the stream into slices; weights
stay within their limit, and learning stops before they exceed it; every record is counted once. A second stream has
events without labels, for a reader that does not require them.
"""

import copy
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import mmh3
import numpy as np
from msgspec.structs import replace

from service.learning.columns.columns import columns_for
from service.learning.events.event_reader import EventReader, use_compiled_reader
from service.learning.identity import Identity, JoinRules, Places
from service.learning.learner import Learner
from service.learning.records import Records
from tests import formulas
from tests.fuzz import judge
from tests.fuzz.texts import Texts
from tests.oracle import standard, update_sums
from tests.partitions import P0

STREAM = 250
TIGHT: dict[str, Any] = {"max_record_bytes": 300, "max_features": 4, "max_name_bytes": 8}
IDENTITIES = (
    Identity(),
    Identity(labels=("no", "yes"), max_columns=12, average=True, **TIGHT),
    Identity(labels=(0, 1), spellings=(("no", False), (1.5, "yes")), rule="lms", eta=0.5),
    Identity(labels=(False, True), max_columns=3, tie="positive"),
    Identity(features="positional", dimension=3),
    Identity(features="positional", dimension=1, labels=("", "é"), rule="logistic-delta", slope=1.0, max_features=4),
    Identity(features="hashed", bits=2, labels=(2, 1.5), average=True),
    Identity(features="hashed", bits=10, rule="error-correction", outputs="bipolar", **TIGHT),
    Identity(event=Places(features="", label="/b", weight=None), text="ignore", labels=(False, True)),
    Identity(event=Places(features="/a", label="/a/label", id="/é", where={"/c": (1, "age", True)}), max_features=6),
    Identity(event=Places(label="/~1/~01", only=("a*", "*.b", "n1?"), without=("a.?", "*=*", "age")), text="reject"),
    Identity(features="hashed", bits=6, event=Places(features="", where={"/label": (1, False)}), **TIGHT),
    Identity(features="positional", dimension=2, event=Places(features="/a/b", weight="/id", id=None)),
    Identity(scale="standard", average="recent", half_life=20, max_columns=30, clip=1.5),
    Identity(scale="standard", features="hashed", bits=2, labels=(0, 1), margin=(0.0, 3.0), clip=1.0),
    Identity(scale="standard", features="positional", dimension=3, average=True, rule="lms", eta=0.9),
    Identity(
        scale="standard",
        event=Places(types=(("n1?", "category"), ("a*", "number"), ("[bc]", "time"), ("*.b", "category"))),
    ),
    Identity(scale="standard", text="number", event=Places(features="", where={"/label": (1, 0)})),
    Identity(
        text="ignore", event=Places(only=("[a-d]*", "n*.0"), without=("*.b",), types=(("*", "time"),), nan="absent")
    ),
    Identity(
        features="hashed",
        bits=4,
        text="number",
        labels=(0, "no"),
        max_name_bytes=12,
        event=Places(types=(("a", "time"), ("n*", "number"), ("[!c]", "category")), nan="absent"),
    ),
    Identity(text="number", event=Places(only=("?.[ab]*", "c", "n1?"), without=("*.b.a", "b"), nan="absent")),
    Identity(
        scale="standard", event=Places(features="", types=(("*.a", "number"), ("*.b", "category"))), max_features=9
    ),
)
JOIN = JoinRules(
    id="/id", label="/label", label_value=None, where={}, own_topic=True, window=1000, default_label=None,
    waits_for_labels=False, max_held=1000,
)  # fmt: skip
"""With it events may lack a label, and need an id."""
LABELS = (
    "-1", "0", "1", "true", "false", "1.0", "-1e0", "1.5", "2", '"no"', '"yes"', '""', '"é"', '"\\u00e9"', "10e-1",
)  # fmt: skip


def nested(texts: Texts, names: list[str], text: str) -> tuple[str, str]:
    """A member, with nested objects, in which these names lead to a value."""
    name, *inner_names = names
    return name, texts.object([nested(texts, inner_names, text)]) if inner_names else text


def shaped(texts: Texts, places: Places, parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The members of a record with these parts where a model reads them; "" names a part that is the whole record."""
    (_, features), *other_parts = parts
    members = []
    for pointer, text in other_parts:
        inside = pointer.startswith(places.features + "/")
        inner_names = judge.names(pointer[len(places.features) :] if inside else pointer)
        if inside and features.startswith("{"):
            name, value = nested(texts, inner_names, text)
            comma = "," if features[1:].strip() != "}" else ""
            features = f"{{{texts.string(name)}:{value}{comma}{features[1:]}"
        else:
            members.append(nested(texts, inner_names, text))
    feature_names = judge.names(places.features)
    return [nested(texts, feature_names, features), *members] if feature_names else [("", features), *members]


def record(texts: Texts, identity: Identity, labelled: bool = True) -> bytes | None:
    """The value of a record: an event for this model, sometimes mutated."""
    if texts.chance(0.005):
        odd = (None, b"", b" ", b"{}", b"[]", b"null", b'"', texts.random.randbytes(20))
        return texts.random.choice(odd)
    return texts.mark(texts.mutate(event(texts, identity, labelled)))


def label(texts: Texts, identity: Identity) -> str:
    """The text of a label, most often one of this model."""
    own = [text for text in LABELS if judge.sign(judge.parse(text.encode())[0], identity.labels) is not None]
    return texts.random.choice(own if own and texts.chance(0.9) else LABELS)


def features(texts: Texts, identity: Identity) -> str:
    """Features for this model."""
    typed = bool(identity.event.types or identity.event.nan) or identity.text == "number"
    return texts.features(identity.features == "positional", identity.dimension or 3, typed)


def event(texts: Texts, identity: Identity, labelled: bool = True) -> bytes:
    """An event for this model, sometimes with an unusual part. If not `labelled`, its label is absent or null."""
    random, chance = texts.random, texts.chance
    places = identity.event
    members = [(places.features, features(texts, identity))]
    members.append((places.label, label(texts, identity)))
    if chance(0.03):
        members[-1] = (places.label, texts.value())
    if not labelled:
        members[1:] = [(places.label, "null")] if chance(0.5) else []
    if chance(0.25):
        weight = texts.number() if chance(0.6) else random.choice(("1", "0.5", "2", "1e6", '"1"'))
        members.append((places.weight or "/weight", weight))
    if chance(0.2):
        members.append((places.id or "/id", texts.string(texts.name()) if chance(0.95) else texts.value()))
    elif not labelled:
        members.append((places.id or "/id", texts.number()))
    for pointer, values in places.where.items():
        if pointer != places.label and chance(0.95):
            members.append((pointer, json.dumps(random.choice(values)) if chance(0.8) else texts.value()))
    members = shaped(texts, places, members)
    if chance(0.15):
        members.append((texts.name(), texts.value()))
    if chance(0.03):
        members.append(random.choice(members))
    if chance(0.02):
        members.pop(random.randrange(len(members)))
    random.shuffle(members)
    whole = members[0][1] if len(members) == 1 and members[0][0] == "" else texts.object(members)
    return (texts.space() + whole + texts.space()).encode(errors="surrogatepass")


def cuts(random: Random, length: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < length:
        end = min(length, start + random.choice((0, 1, 1, 2, 7, 64, length)))
        yield start, end
        start = end


def placed(identity: Identity, names: list[str], i: int, item: Any) -> tuple[int | None, float]:
    """The column of feature i, or None if its name has none, and its value, whose sign hashing may change."""
    name, value = item if isinstance(item, tuple) else (str(i), item)
    if identity.features == "named":
        return 1 + names.index(name) if name in names else None, value
    if identity.features == "hashed":
        h = mmh3.hash(name.encode())
        return 1 + abs(h) % (1 << (identity.bits or 0)), value if h >= 0 else -value
    return 1 + i, value


class JudgedStream:
    """A stream as the judge reads it: the expected result of every path through the service."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.names: list[str] = []
        self.sums: dict[int, tuple[float, ...]] = {}
        self.events = self.ignored = self.rejected = 0

    def entries(self, features: judge.Features) -> list[tuple[int, float]]:
        """The columns and values of an accepted event; a new name gets the next column."""
        entries = []
        for i, item in enumerate(features):
            column, value = placed(self.identity, self.names, i, item)
            if column is None:
                if len(self.names) >= (self.identity.max_columns or 0):
                    self.ignored += 1
                    continue
                self.names.append(item[0] if isinstance(item, tuple) else "")
                column = len(self.names)
            entries.append((column, value))
        return entries

    def pairs(self, features: judge.Features) -> list[tuple[int, float]]:
        """The values that are multiplied by the weights: scaled if the model scales, with equal columns merged."""
        entries = self.entries(features)
        if self.identity.scale == "standard":
            clip, sums = self.identity.clip or None, self.sums
            entries = [(c, update_sums(sums, c, v, clip) if isinstance(v, float) else v) for c, v in entries]
            entries = [(c, standard(v, sums[c], clip) if isinstance(v, float) else v) for c, v in entries]
        return judge.merged(entries)


def bits(values: Any) -> bytes:
    return np.asarray(values, np.float64).tobytes()


class JudgedRecords:
    """Records, and what the judge says about them. If not `labelled`, their events need no label."""

    def __init__(self, name: str, identity: Identity, records: list[bytes | None], labelled: bool = True) -> None:
        self.name, self.identity, self.records, self.labelled = name, identity, records, labelled
        self.verdicts = [judge.event(raw, identity, labelled) for raw in records]

    def hold(self, condition: Any, message: str, row: int | None = None) -> None:
        if not condition:
            record = "" if row is None else f": {self.records[row]!r}"
            raise AssertionError(f"{self.name}, {self.identity}, labelled={self.labelled}: {message}{record}")


def read_slices(stream: JudgedRecords, slices: Iterable[tuple[int, int]]) -> Counter[str]:
    """Read the records slice by slice; returns how many were accepted, skipped, and rejected for each reason."""
    identity, hold = stream.identity, stream.hold
    columns, judged, totals = columns_for(identity), JudgedStream(identity), Counter[str]()
    reader = EventReader(identity if stream.labelled else replace(identity, join=JOIN))
    for start, end in slices:
        column_count = len(columns.names)
        events = reader.read(stream.records[start:end])
        batch, rejects = columns.decode(events), events.rejects
        hold(len(columns.names) == column_count, "the decoder added columns", start)
        columns.extend(batch.names)
        reasons = {start + r.record: (r.pointer, r.reason) for r in rejects}
        places = {start + r: i for i, r in enumerate(batch.records)}
        hold(list(places) == sorted(places) and len(reasons) == len(rejects), "not in order, or repeated", start)
        ignored_before = judged.ignored
        for row in range(start, end):
            event, faults = stream.verdicts[row]
            hold((row in places) + (row in reasons) + (row - start in events.skipped) == 1, "no single result", row)
            if event is None and not faults:
                hold(row - start in events.skipped, "not skipped", row)
                totals["skipped"] += 1
                continue
            if event is None:
                hold(row in reasons, f"accepted in spite of {faults}", row)
                hold(judge.explains(faults, *reasons[row]), f"{reasons[row]} instead of {faults}", row)
                totals[reasons[row][1]] += 1
                continue
            hold(row in places, f"rejected as {reasons.get(row)}", row)
            totals["accepted"] += 1
            i = places[row]
            pairs = judged.pairs(event.features) if identity.scale == "none" else judged.entries(event.features)
            span = slice(int(batch.starts[i]), int(batch.starts[i + 1]))
            hold(batch.columns[span].tolist() == [c for c, _ in pairs], "other columns", row)
            hold(bits(batch.values[span]) == bits([v for _, v in pairs]), "other values", row)
            if identity.scale == "standard":
                hold(batch.numbers[span].tolist() == [isinstance(v, float) for _, v in pairs], "other numbers", row)
            hold(bits([batch.labels[i], batch.weights[i]]) == bits([event.y, event.weight]), "other label, weight", row)
            hold(events.ids[i] == event.id, f"id {events.ids[i]!r} instead of {event.id!r}", row)
        hold(len(batch.ignored) == judged.ignored - ignored_before, "ignored features", start)
        hold(columns.names == judged.names, f"names {columns.names}, judged {judged.names}", end - 1)
    hold(totals.total() == len(stream.records), "records lost")
    return totals


def run(seed: int, length: int = STREAM) -> Counter[str]:
    """Run one stream; returns how many records were accepted, skipped, and rejected for each reason."""
    random = Random(seed)
    identity = IDENTITIES[seed % len(IDENTITIES)]
    texts = Texts(random)
    # The compiled and the careful reader, in turns.
    use_compiled_reader(bool(seed // len(IDENTITIES) % 2))
    records = [record(texts, identity) for _ in range(length)]
    stream = JudgedRecords(f"seed {seed}", identity, records)
    verdicts, hold = stream.verdicts, stream.hold
    totals = read_slices(stream, cuts(random, length))

    # Events without labels between others.
    source = Random(f"unlabelled {seed}")
    count = length // 5 if identity.event.id else 0  # labels that come later are found by an id
    others = [record(Texts(source), identity, labelled=source.random() < 0.3) for _ in range(count)]
    read_slices(JudgedRecords(f"seed {seed}", identity, others, labelled=False), cuts(source, len(others)))

    # The learner, with two divisions into slices.
    learner, stops = learn_slices(identity, records, [(i, i + 1) for i in range(length)])
    second, second_stops = learn_slices(identity, records, cuts(random, length))
    hold(learner.main.squared_norm <= 1e30 * (1.0 + 1e-9), "weights beyond their limit")
    counts = learner.main.counts
    hold(counts.records == length - len(stops), "not every record is counted")
    hold(counts.skipped == sum(not event and not faults for event, faults in verdicts), "skipped records")
    hold(sum(to - start for start, to in learner.covered[P0]) == length - len(stops), "covered")
    expected = JudgedStream(identity)
    fold_events, w = 0, [0.0] * len(learner.columns)
    for row, (event, _) in enumerate(verdicts):
        hold(event or row not in stops, "it stops at a record that is not an event", row)
        if event and row not in stops:
            fold_events += 1
            formulas.learn(w, expected.pairs(event.features), event.y, event.weight, identity)
        elif event:
            next_weights = [*w, *[0.0] * len(event.features)]
            formulas.learn(next_weights, copy.deepcopy(expected).pairs(event.features), event.y, event.weight, identity)
            hold(not sum(v * v for v in next_weights) <= 1e30, "it stops without need", row)
    hold(counts.events == fold_events, "events learned")
    hold(learner.columns.names == expected.names, "the learner's names")
    hold(counts.ignored_features == expected.ignored, "the learner's ignored features")
    if identity.rule != "logistic-delta":  # its exp need not be equal bit for bit
        hold(bits(learner.main.weights) == bits(w), "weights are not the fold's")
    hold(second_stops == stops and second.main.counts == counts, "other slices, other counts")
    hold(second.columns.names == learner.columns.names, "other slices, other names")
    for name, array in learner.arrays.items():
        hold(bits(array) == bits(second.arrays[name]), f"other slices, another {name}")
    hold((second.covered, second.runs) == (learner.covered, learner.runs), "other slices, other offsets")
    totals["diverged"] += len(stops)
    return totals


def learn_slices(identity: Identity, records: list[bytes | None], slices: Any) -> tuple[Learner, list[int]]:
    """A learner of these slices, and the records at which it diverged, which it skipped, as with `--resume-at`."""
    learner, stops = Learner(identity), list[int]()
    learner.begin({P0: 0})
    for start, end in slices:
        offset = start
        while offset < end:
            outcome = learner.apply(Records.from_values(offset, records[offset:end]))
            offset += outcome.consumed
            if outcome.diverged:
                stops.append(offset)
                offset += 1
                learner.skip(P0, offset)
    return learner, stops


def fuzz(events: int, seed: int = 0) -> Counter[str]:
    """Run streams of the seeds from `seed` on, until they have had this many events."""
    counts = Counter[str]()
    for i in range(-(-events // STREAM)):
        counts += run(seed + i)
    return counts


if __name__ == "__main__":
    began, counted = time.perf_counter(), fuzz(*map(int, sys.argv[1:]))
    total = counted.total() - counted["diverged"]
    print(f"{total} events in {time.perf_counter() - began:.0f} s, 0 violations: {dict(counted.most_common())}")
