"""Large requests whose instances are written alike get the answers of each alone, bit for bit; others are left."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from service.errors import Rejected
from service.learning.features import Flattener
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.serving import alike, predictor, requests

NAMES = ["a", "b\\u00e9", "c 1.5e3", 'd\\"', "é", "f", "g", "never seen"]
IDENTITIES = {
    "named": Identity(),
    "tie": Identity(tie="positive", labels=("no", "yes")),
    "positional": Identity(features="positional", dimension=7),
    "hashed": Identity(features="hashed", bits=2),
    "scaled": Identity(scale="standard", start="random:1"),
    "scaled, hashed": Identity(scale="standard", features="hashed", bits=2),
    "logistic": Identity(rule="logistic-delta", eta=0.1),
    "average": Identity(average=True),
    "classes": Identity(labels=(0, "x", 2.5)),
    "classes, average, scaled": Identity(labels=(0, 1, 2), average="recent", half_life=5, scale="standard"),
}
NUMBERS = [
    "0", "-0", "-0.0", "1", "-1", "12.5", "0.0001", "1e3", "1E-7", "-2.5e+10", "0.1", "0.30000000000000004",
    "123456789012345", "1234567890123456", "0.123456789012345", "0.1234567890123456", "9007199254740993",
    "123456.7890123451", "2.2250738585072014e-308", "5e-324", "1e30", "-1e30", "999999999999999", "0.000000000000001",
]  # fmt: skip
WRONG = [
    "01",
    "-",
    "+1",
    "1.",
    ".5",
    "1e",
    "1e400",
    "1.5.2",
    "--1",
    "-01",
    "00.5",
    "1e30e",
    "NaN",
    "1 2",
    "2e30",
    "1,2",
]


def learned(identity: Identity) -> Learner:
    rng, learner = Random(1), Learner(identity, options=Options(serve="average" if identity.average else "last"))
    learner.begin({0: 0})
    labels = identity.labels or (-1, 1)
    for i in range(60):
        row = [*(json.loads(number(rng)) for _ in NAMES[:-2]), 1.5]  # the last one has no variance
        features = row if identity.features == "positional" else dict(zip(map(decoded, NAMES), row, strict=False))
        learner.apply(0, Records.of(i, [json.dumps({"features": features, "label": rng.choice(labels)}).encode()]))
    return learner


def decoded(name: str) -> str:
    return str(json.loads(f'"{name}"'))


def number(rng: Random) -> str:
    return rng.choice([str(round(rng.gauss(0, 1), 4)), repr(rng.gauss(0, 100)), str(rng.randrange(-9, 9)), "-0"])


def body(identity: Identity, rows: Sequence[Sequence[str]], space: str = "") -> bytes:
    if identity.features == "positional":
        all_ = [f'{{"features":[{",".join(row)}]}}' for row in rows]
    else:
        pairs = (",".join(f'{space}"{n}":{space}{x}' for n, x in zip(NAMES, row, strict=True)) for row in rows)
        all_ = [f'{{"features"{space}:{{{one}}}}}' for one in pairs]
    return f'{space}{{"instances":[{f"{space},".join(all_)}]{space}}}'.encode()


def read(raw: bytes, flattener: Flattener, most: int = 10_000) -> list[list[float]] | None:
    """The values of all instances, where they are sure."""
    first = alike.look(raw, flattener)
    pieces = [] if first is None else list(alike.values(raw, first, most))
    if not pieces or pieces[-1] is None:
        return None
    return [row for piece in pieces if piece is not None for row in piece.tolist()]


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
@pytest.mark.parametrize("space", ["", " "])
def test_instances_written_alike_get_the_answers_of_each_alone(
    identity: Identity, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike, "NUMBERS", 40)  # a few instances at a time
    learner, rng = learned(identity), Random(2)
    width = 7 if identity.features == "positional" else len(NAMES)
    raw = body(identity, [[number(rng) for _ in range(width)] for _ in range(50)], space)
    instances, form = requests.read(raw, learner.flattener, 50)
    first = alike.look(raw, learner.flattener)
    assert first is not None
    found = predictor.answer_alike(alike.gather(learner, learner, first.features), first, raw, 50, 2)
    assert found is not None
    alone = [predictor.answer(learner, learner, features, top=2) for features in instances]
    assert bytes(found.predictions) == msgspec.json.encode(alone)
    whole = predictor.answer_large(predictor.moment(learner), raw, 50, explain=False, top=2)
    assert (bytes(whole.predictions), whole.form, whole.labels) == (bytes(found.predictions), form, found.labels)


def test_a_number_of_any_form_is_what_it_is_elsewhere() -> None:
    flattener = Flattener(Identity(features="positional", dimension=1))
    rng = Random(3)
    texts = [
        *NUMBERS,
        *(number(rng) for _ in range(300)),
        *(f"{rng.uniform(-1, 1) * 10 ** rng.randrange(-9, 9):.{n}f}" for n in range(17) for _ in range(20)),
    ]
    found = read(body(flattener.identity, [[text] for text in texts]), flattener)
    assert found is not None
    expected = msgspec.json.decode(f"[{','.join(texts)}]", type=list[float])
    assert [one.hex() for (one,) in found] == [one.hex() for one in expected]
    # As an integer is read: it has no negative zero.
    assert [one for (one,) in found] == [float(text) for text in texts]
    for wrong in WRONG:
        for rows in ([["1"], [wrong], ["2"]], [["1"], [wrong]], [[wrong], ["1"]]):
            assert read(body(flattener.identity, rows), flattener) is None, (wrong, rows)


WHOLE = b'{"instances":[{"features":{"a":1,"b":2}},{"features":{"a":3,"b":4}}]}'


@pytest.mark.parametrize(
    "raw",
    [
        WHOLE.replace(b"}}]", b"}},]"),
        WHOLE.replace(b"}},{", b"}},,{"),
        WHOLE.replace(b"}},{", b"}}{"),
        WHOLE[:-1],
        WHOLE[:-2],
        WHOLE[:-5],
        WHOLE + b"x",
        WHOLE + b"1",
        WHOLE[:-1] + b',"instances":[]}',
        WHOLE.replace(b'"b":4', b'"a":4'),
        WHOLE.replace(b'"b"', b'"a"'),
        WHOLE.replace(b'"b":4', b'"c":4'),
        WHOLE.replace(b'"b":4', b'"b":null'),
        WHOLE.replace(b'"b":4', b'"b":'),
        WHOLE.replace(b'"b":4', b'"b":4,"c":5'),
        WHOLE.replace(b'3,"b":4', b"3"),
        WHOLE.replace(b'"a"', b'"\xff"'),
        WHOLE.replace(b'"a"', b'"a\0"'),
        WHOLE.replace(b'{"features":{"a"', b'{"x":1,"features":{"a"'),
        b'{"instances":[]}',
        b'{"instances":[{"features":{}},{"features":{}}]}',
        b'{"features":{"a":1}}',
    ],
)
def test_what_is_not_alike_is_left(raw: bytes) -> None:
    """Wrong or not: `pieces` says which."""
    assert read(raw, Flattener(Identity())) is None


def test_what_patterns_leave_out_and_what_is_too_much_is_left() -> None:
    assert read(WHOLE, Flattener(Identity())) == [[1.0, 2.0], [3.0, 4.0]]
    assert read(WHOLE, Flattener(Identity()), most=1) is None
    assert read(WHOLE, Flattener(Identity(max_features=1))) is None
    assert (
        read(
            WHOLE,
            Flattener(
                msgspec.structs.replace(Identity(), event=msgspec.convert({"only": ["a"]}, type(Identity().event)))
            ),
        )
        is None
    )


def test_whatever_is_changed_in_a_body_it_is_read_as_elsewhere_or_left() -> None:
    rng, taken = Random(4), 0
    alphabet = b'0123456789eE+-.,:{}[]" \n\x00abx\\'
    for identity in (IDENTITIES["named"], IDENTITIES["positional"]):
        flattener = Flattener(identity)
        width = 7 if identity.features == "positional" else len(NAMES)
        whole = body(identity, [[number(rng) for _ in range(width)] for _ in range(4)])
        for _ in range(4000):
            raw = bytearray(whole)
            for _ in range(rng.choice((1, 1, 2, 3))):
                at = rng.randrange(len(raw))
                raw[at : at + rng.randrange(3)] = bytes(rng.choices(alphabet, k=rng.randrange(3)))
            if (found := read(bytes(raw), flattener, 4)) is None:
                continue
            taken += 1
            try:
                instances, form = requests.read(bytes(raw), flattener, 4)
            except Rejected as rejected:
                raise AssertionError(bytes(raw)) from rejected
            rows: list[Any] = [list(f.values()) if isinstance(f, dict) else f for f in instances]
            assert form == "instances"
            assert np.array(rows, float).tobytes() == np.array(found).tobytes(), bytes(raw)
    assert taken > 500
