"""How long a record keeps the event loop busy, however it is made, and where a slice may end."""

import json
import time
from collections.abc import Callable

import pytest

from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.records import Records
from tests.checks import learner_of

LIMIT = 1 << 20
MOST_SECONDS, MOST_PARSED = 0.05, 8
"""A slower machine may take this many times what `json.loads` takes there for one of the records."""
NAMES = [f"sensor:{i:05d}:{'x' * 70}" for i in range(10_000)]
MANY = b",".join(b'"f%d":%d' % (i, i) for i in range(9_999))
LONG, NULLS = b"n" * 900_000, b",".join(b'"%d":null' % i for i in range(9_000))
FEATURES = json.dumps({name: i / 1024 for i, name in enumerate(NAMES)}).encode()


def filled(before: bytes, item: bytes, after: bytes) -> bytes:
    """A record of `LIMIT` bytes: the item as often as it fits, with commas between."""
    count = (LIMIT - len(before) - len(after)) // (len(item) + 1)
    return before + b",".join([item] * count) + after


def records() -> dict[str, bytes]:
    """Records of 1 MiB, each of them much work for some part of the readers."""
    begin, known = b'{"features":{"a":1},"label":1,"ts":', b'{"features":' + FEATURES
    found = {
        "features alone": known + b',"label":1}',
        "a time next to them": known + b',"label":1,"ts":"12:00:01"}',
        "the last is text": known[:-20] + b'":"x"},"label":1}',
        "the last is beyond": known[:-20] + b'":1e31},"label":1}',
        "one of the limit's is given twice": b'{"features":{' + MANY + b',"f0":0},"label":1}',
        "a list under a long name": b'{"features":{"' + LONG + b'":[' + b"1," * 8_999 + b'1]},"label":1}',
        "nulls under a long name": b'{"features":{"' + LONG + b'":{' + NULLS + b'}},"label":1}',
        "unknown label": known + b',"label":7}',
        "cut short": known + b',"label":1',
        "far too many features": b'{"features":{' + b",".join(b'"%x":1' % i for i in range(90_000)) + b'},"label":1}',
        "one member again and again": filled(begin + b"1,", b'"a":1', b"}"),
        "a long name": b'{"features":{"' + b"/" * (LIMIT - 60) + b'":1},"label":1}',
        "half of a pair": filled(begin + b"[", b'"\\ud83d\\ude00"', b',"\\ud83d"]}'),
        "brackets": b"[" * LIMIT,
        "backslashes": begin + b'"' + b"\\" * (LIMIT - 60) + b'"}',
        "a long number": begin + b"9" * (LIMIT - 60) + b".5}",
        "not UTF-8 at last": begin + b'"' + "日".encode() * 349_000 + b'\xff"}',
    }
    for item in (b"1.5", b"[]", b'{"":0}', b'"a"', b'"\\u0041"', b"null", b"NaN", b'"\\ud83d\\ude00"'):
        found[f"unknown {item.decode()}"] = filled(begin + b"[", item, b"]}")
        found[f"a feature of {item.decode()}"] = filled(b'{"features":{"b":[', item, b']},"label":1}')
        found[f"features of {item.decode()}"] = filled(b'{"features":{', b'"b":' + item, b'},"label":1}')
        found[f"a label of {item.decode()}"] = filled(b'{"features":{"b":1},"label":[', item, b"]}")
        found[f"{item.decode()}, and broken"] = filled(begin + b"[", item, b"]]}")
    return found


RECORDS = records()


IDENTITIES = {
    "named": Identity(),
    "hashed": Identity(features="hashed", bits=18),
    "whole": Identity(event=Places(features="", without=("x*",)), scale="standard"),
    "deep": Identity(event=Places(features="/features/b", label="/label/b", where={"/ts": ("a",)})),
}


@pytest.mark.nightly
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_no_record_holds_the_event_loop_for_50_ms(identity: Identity) -> None:
    """The best of several runs, in processor time, which does not depend on how busy the machine is."""
    # Compiled from here on.
    learner, costs = learner_of(identity, [b'{"features":{"a":{},"b":{}},"label":1,"ts":"a"}']), {}
    for name, raw in RECORDS.items():
        assert len(raw) <= LIMIT, name
        costs[name] = _cost(learner, raw)
        if costs[name] > MOST_SECONDS / 2:
            costs[name] = min(_cost(learner, raw) for _ in range(12))
    slowest = sorted(costs, key=costs.__getitem__)[-5:]
    print({name: f"{1000 * costs[name]:.0f} ms" for name in slowest})
    parsed = min(_seconds(lambda: json.loads(RECORDS["the last is text"])) for _ in range(12))
    assert costs[slowest[-1]] < max(MOST_SECONDS, MOST_PARSED * parsed)


def _cost(learner: Learner, raw: bytes) -> float:
    return _seconds(lambda: learner.apply(0, Records.of(learner.next[0], [raw])))


def _seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began
