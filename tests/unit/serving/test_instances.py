"""The instances of a large request, read as rows, get the answers that each gets expected, bit for bit."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.options import Options
from service.serving import scoring
from service.serving.predictions import V1Request
from tests.checks import learner_of

pytestmark = pytest.mark.usefixtures("compiled_reader")

NAMES = ["a", "b", "c 1.5e3", "d.e", "é", "f", "g", "never seen"]
IDENTITIES = {
    "scaled": Identity(scale="standard", start="random:1", clip=1.0),
    "classes": Identity(labels=(0, "x", 2.5)),
    "classes, average, scaled": Identity(labels=(0, 1, 2), average="recent", half_life=5, scale="standard"),
    "patterns": Identity(event=Places(without=("b", "u.*")), text="ignore"),
    "types": Identity(text="number", event=Places(types=(("a", "category"), ("at*", "time")), nan="absent")),
    "whole": Identity(event=Places(features="", label="/label", weight=None), scale="standard"),
}


def train(identity: Identity) -> Learner:
    rng, labels = Random(1), identity.labels or (-1, 1)
    events = [instance(identity, rng, 7) | {"label": rng.choice(labels)} for _ in range(60)]
    options = Options(serve="average" if identity.average else "last")
    learner = learner_of(identity, [json.dumps(event).encode() for event in events], options)
    assert learner.main.counts.events > 50
    return learner


def instance(identity: Identity, rng: Random, names: int = 8) -> dict[str, Any]:
    row: dict[str, Any] = {name: number(rng) for name in NAMES[:names]}
    if rng.random() < 0.5:
        row |= {"u": {"age": rng.randrange(1, 90), "of": rng.choice(["x", "y"])}, "new": rng.random() < 0.5, "no": None}
    if rng.random() < 0.1:
        row["tags"] = [rng.choice("xy") for _ in range(3)]  # for the careful reader
    if identity.event.types:
        at = rng.randrange(10**9, 2 * 10**9)
        row |= {"at": at, "at_2": f"{at}000", "to": {"id": at % 7}, "b": f"{number(rng)}", "no": rng.choice(["NaN", 1])}
    return row if identity.event.features == "" else {"features": row}


def number(rng: Random) -> float:
    return rng.choice([round(rng.gauss(0, 1), 4), rng.gauss(0, 100), rng.randrange(-9, 9), -0.0, 1e-20, 5e-324])


def body(identity: Identity, instances: Sequence[Any]) -> bytes:
    return json.dumps(
        {"events" if identity.event.features == "" else "instances": instances}, ensure_ascii=False
    ).encode()


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_instances_read_as_rows_are_answered_as_alone(identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.serving.predictions.PIECE_BYTES", 2000)  # some instances at a time
    learner, rng = train(identity), Random(2)
    raw = body(identity, [instance(identity, rng) for _ in range(200)])
    request = V1Request(raw, 200)
    instances: Any = request.read(learner.flattener).features
    for compiled, explain in ((True, False), (False, False), (True, True)):
        use_compiled_reader(compiled)
        expected = [scoring.answer(learner, learner.main, features, explain, top=2) for features in instances]
        predictions = scoring.predict_large(scoring.freeze(learner, learner.main), request, explain, top=2)
        assert msgspec.json.encode(predictions) == msgspec.json.encode(expected)
        answer = request.answer(predictions, "m", 1, 0, None)
        assert answer == b'{"model":"m","version":1,"ahead":0,"predictions":%b}' % msgspec.json.encode(expected)
