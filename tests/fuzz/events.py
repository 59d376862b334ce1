"""Mutated events through the decoder and the learner, against the judge: `python -m tests.fuzz.events 1000000 [SEED]`.

Each seed is one stream under one identity. What must hold of it: no exception; a record is accepted if and only if
the judge accepts it, with its features, label and weight bit for bit; a rejected one has a reason that it deserves
and changes nothing but its counter, and never a column; nothing depends on how the stream is cut into slices;
weights stay within their limit, and learning stops where they would not; every record is counted once.
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

from service.learning.columns.columns import columns_for
from service.learning.events.batch import REASONS, Decoder, use_compiled_reader
from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.records import Records
from tests import formulas
from tests.fuzz import judge
from tests.fuzz.texts import Texts
from tests.oracle import standard, update_sums

STREAM = 250
TIGHT: dict[str, Any] = {"max_record_bytes": 300, "max_features": 4, "max_name_bytes": 8}
IDENTITIES = (
    Identity(),
    Identity(labels=("no", "yes"), max_columns=12, average=True, **TIGHT),
    Identity(labels=(0, 1), rule="lms", eta=0.5),
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
    Identity(scale="standard", average="recent", half_life=20, max_columns=30),
    Identity(scale="standard", features="hashed", bits=2, labels=(0, 1), margin=(0.0, 3.0)),
    Identity(scale="standard", features="positional", dimension=3, average=True, rule="lms", eta=0.9),
)
LABELS = (
    "-1", "0", "1", "true", "false", "1.0", "-1e0", "1.5", "2", '"no"', '"yes"', '""', '"é"', '"\\u00e9"', "10e-1",
)  # fmt: skip


def nested(texts: Texts, names: list[str], text: str) -> tuple[str, str]:
    """A member through which a value is reached by these names."""
    first, *rest = names
    return first, texts.object([nested(texts, rest, text)]) if rest else text


def shaped(texts: Texts, places: Places, parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The members of a record in which these parts stand where a model looks for them; "" is one that is whole."""
    (_, features), *others = parts
    members = []
    for pointer, text in others:
        inside = pointer.startswith(places.features + "/")
        inner = judge.names(pointer[len(places.features) :] if inside else pointer)
        if inside and features.startswith("{"):
            name, value = nested(texts, inner, text)
            comma = "," if features[1:].strip() != "}" else ""
            features = f"{{{texts.string(name)}:{value}{comma}{features[1:]}"
        else:
            members.append(nested(texts, inner, text))
    own = judge.names(places.features)
    return [nested(texts, own, features), *members] if own else [("", features), *members]


def record(texts: Texts, identity: Identity) -> bytes | None:
    """One record's value: an event of this model's form, with an accident perhaps."""
    if texts.chance(0.005):
        odd = (None, b"", b" ", b"{}", b"[]", b"null", b'"', texts.random.randbytes(20))
        return texts.random.choice(odd)
    return texts.failed_check(event(texts, identity))


def event(texts: Texts, identity: Identity) -> bytes:
    """An event of this model's form with something odd about it, perhaps."""
    random, chance = texts.random, texts.chance
    places = identity.event
    members = [(places.features, texts.features(identity.features == "positional", identity.dimension or 3))]
    known = [text for text in LABELS if judge.sign(judge.parsed(text.encode())[0], identity.labels) is not None]
    members.append((places.label, random.choice(known if known and chance(0.9) else LABELS)))
    if chance(0.03):
        members[-1] = (places.label, texts.value())
    if chance(0.25):
        weight = texts.number() if chance(0.6) else random.choice(("1", "0.5", "2", "1e6", '"1"'))
        members.append((places.weight or "/weight", weight))
    if chance(0.2):
        members.append((places.id or "/id", texts.string(texts.name()) if chance(0.95) else texts.value()))
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
    at = 0
    while at < length:
        end = min(length, at + random.choice((0, 1, 1, 2, 7, 64, length)))
        yield at, end
        at = end


def placed(identity: Identity, names: list[str], i: int, item: Any) -> tuple[int | None, float]:
    """The column of feature i, None where its name has none, and its value, which hashing may turn."""
    name, value = item if isinstance(item, tuple) else (str(i), item)
    if identity.features == "named":
        return 1 + names.index(name) if name in names else None, value
    if identity.features == "hashed":
        h = mmh3.hash(name.encode())
        return 1 + abs(h) % (1 << (identity.bits or 0)), value if h >= 0 else -value
    return 1 + i, value


def merged(pairs: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Values of equal columns added up, in the order in which columns first come."""
    found: dict[int, float] = {}
    for column, value in pairs:
        found[column] = found[column] + value if column in found else value
    return list(found.items())


class Judged:
    """A stream as the judge has it: what every way through the service must come to."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.names: list[str] = []
        self.sums: dict[int, tuple[float, float, float]] = {}
        self.events = self.ignored = self.rejected = 0

    def entries(self, features: judge.Features) -> list[tuple[int, float]]:
        """Columns and values of an accepted event; a new name takes the next column."""
        found = []
        for i, item in enumerate(features):
            column, value = placed(self.identity, self.names, i, item)
            if column is None:
                if len(self.names) >= (self.identity.max_columns or 0):
                    self.ignored += 1
                    continue
                self.names.append(item[0] if isinstance(item, tuple) else "")
                column = len(self.names)
            found.append((column, value))
        return found

    def pairs(self, features: judge.Features) -> list[tuple[int, float]]:
        """The values that an event's weights are multiplied by: scaled if the model scales, equal columns merged."""
        found = self.entries(features)
        if self.identity.scale == "standard":
            for column, value in found:
                if isinstance(value, float):
                    update_sums(self.sums, column, value)
            found = [(c, standard(v, *self.sums[c]) if isinstance(v, float) else v) for c, v in found]
        return merged(found)


def bits(values: Any) -> bytes:
    return np.asarray(values, np.float64).tobytes()


def run(seed: int, length: int = STREAM) -> Counter[str]:
    """One stream; returns how many of its records were accepted, and rejected by reason."""
    random = Random(seed)
    identity = IDENTITIES[seed % len(IDENTITIES)]
    texts = Texts(random)
    # By either reader, in turns.
    use_compiled_reader(bool(seed // len(IDENTITIES) % 2))
    records = [record(texts, identity) for _ in range(length)]
    verdicts = [judge.event(raw, identity) for raw in records]

    def hold(condition: Any, what: str, at: int | None = None) -> None:
        if not condition:
            raise AssertionError(f"seed {seed}, {identity}: {what}" + ("" if at is None else f": {records[at]!r}"))

    # The decoder, slice by slice.
    columns, judged, counted = columns_for(identity), Judged(identity), Counter[str]()
    decoder = Decoder(identity, columns)
    for start, end in cuts(random, length):
        known = len(columns.names)
        batch, rejects = decoder.decode(records[start:end])
        hold(len(columns.names) == known, "reading gave columns", start)
        columns.extend(batch.names)
        reasons = {start + r.record: r.reason for r in rejects}
        places = {start + r: i for i, r in enumerate(batch.records)}
        hold(list(places) == sorted(places) and len(reasons) == len(rejects), "in order, each once", start)
        before = judged.ignored
        for at in range(start, end):
            event, faults = verdicts[at]
            hold((at in places) + (at in reasons) + (at - start in batch.skipped) == 1, "none, or more than one", at)
            if event is None and not faults:
                hold(at - start in batch.skipped, "not passed over", at)
                counted["skipped"] += 1
                continue
            if event is None:
                hold(at in reasons, f"accepted in spite of {faults}", at)
                hold(reasons[at] in faults and reasons[at] in REASONS, f"{reasons[at]} instead of {faults}", at)
                counted[reasons[at]] += 1
                continue
            hold(at in places, f"rejected as {reasons.get(at)}", at)
            counted["accepted"] += 1
            i = places[at]
            pairs = judged.pairs(event.features) if identity.scale == "none" else judged.entries(event.features)
            part = slice(int(batch.starts[i]), int(batch.starts[i + 1]))
            hold(batch.columns[part].tolist() == [c for c, _ in pairs], "other columns", at)
            hold(bits(batch.values[part]) == bits([v for _, v in pairs]), "other values", at)
            if identity.scale == "standard":
                hold(batch.numbers[part].tolist() == [isinstance(v, float) for _, v in pairs], "other numbers", at)
            hold(bits([batch.labels[i], batch.weights[i]]) == bits([event.y, event.weight]), "other label, weight", at)
        hold(len(batch.ignored) == judged.ignored - before, "ignored features", start)
        hold(columns.names == judged.names, f"names {columns.names}, judged {judged.names}", end - 1)
    hold(counted.total() == length, "records lost")

    # The learner, cut two ways.
    (learner, stops), (other, others_stops) = [
        learned(identity, records, way) for way in ([(i, i + 1) for i in range(length)], cuts(random, length))
    ]
    hold(learner.squared_norm <= 1e30 * (1.0 + 1e-9), "weights beyond their limit")
    counts = learner.counts
    hold(counts.records == length - len(stops), "not every record is counted")
    hold(counts.skipped == sum(not event and not faults for event, faults in verdicts), "passed over")
    hold(sum(to - start for start, to in learner.covered[0]) == length - len(stops), "covered")
    rest = Judged(identity)
    folded, w = 0, [0.0] * len(learner.columns)
    for at, (event, _) in enumerate(verdicts):
        hold(event or at not in stops, "it stops at what is no event", at)
        if event and at not in stops:
            folded += 1
            formulas.learn(w, rest.pairs(event.features), event.y, event.weight, identity)
        elif event:
            after = [*w, *[0.0] * len(event.features)]
            formulas.learn(after, copy.deepcopy(rest).pairs(event.features), event.y, event.weight, identity)
            hold(not sum(v * v for v in after) <= 1e30, "it stops without need", at)
    hold(counts.events == folded, "events learned")
    hold(learner.columns.names == rest.names, "the learner's names")
    hold(counts.ignored_features == rest.ignored, "the learner's ignored features")
    if identity.rule != "logistic-delta":  # whose exp is outside the promise of bits
        hold(bits(learner.weights) == bits(w), "weights are not the fold's")
    hold(others_stops == stops and other.counts == counts, "another cut, other counts")
    hold(other.columns.names == learner.columns.names, "another cut, other names")
    for name, array in learner.arrays.items():
        hold(bits(array) == bits(other.arrays[name]), f"another cut, another {name}")
    hold((other.covered, other.runs) == (learner.covered, learner.runs), "another cut, other offsets")
    counted["diverged"] += len(stops)
    return counted


def learned(identity: Identity, records: list[bytes | None], way: Any) -> tuple[Learner, list[int]]:
    """A learner of these slices, and the records at which it diverged: they are left out, as by `--resume-at`."""
    learner, stops = Learner(identity), list[int]()
    learner.begin({0: 0})
    for start, end in way:
        at = start
        while at < end:
            outcome = learner.apply(0, Records.of(at, records[at:end]))
            at += outcome.consumed
            if outcome.diverged:
                stops.append(at)
                at += 1
                learner.skip(0, at)
    return learner, stops


def fuzz(events: int, seed: int = 0) -> Counter[str]:
    """Run streams of the seeds from `seed` on, until they had this many events."""
    counted = Counter[str]()
    for i in range(-(-events // STREAM)):
        counted += run(seed + i)
    return counted


if __name__ == "__main__":
    began, counted = time.perf_counter(), fuzz(*map(int, sys.argv[1:]))
    total = counted.total() - counted["diverged"]
    print(f"{total} events in {time.perf_counter() - began:.0f} s, 0 violations: {dict(counted.most_common())}")
