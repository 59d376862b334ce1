"""What a record costs the event loop, however it is made, and where a slice ends."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import Source
from service.streaming import learn
from service.streaming.records import KafkaRecord
from tests.checks import state_digest
from tests.kafka_records import join_records
from tests.kinds import BAD_NAMED

LIMIT = 1 << 20
MOST_SECONDS, MOST_PARSED = 0.05, 8
"""On a slower machine as many times what `json.loads` takes for one of them there."""
NAMES = [f"sensor:{i:05d}:{'x' * 70}" for i in range(10_000)]
MANY = b",".join(b'"f%d":%d' % (i, i) for i in range(9_999))
LONG, NULLS = b"n" * 900_000, b",".join(b'"%d":null' % i for i in range(9_000))
FEATURES = json.dumps({name: i / 1024 for i, name in enumerate(NAMES)}).encode()


def filled(before: bytes, item: bytes, after: bytes) -> bytes:
    """The limit's bytes: as many of the item as fit, with commas between them."""
    count = (LIMIT - len(before) - len(after)) // (len(item) + 1)
    return before + b",".join([item] * count) + after


def records() -> dict[str, bytes]:
    """Records of 1 MiB that are much work for somebody."""
    begin, known = b'{"features":{"a":1},"label":1,"ts":', b'{"features":' + FEATURES
    found = {
        "features alone": known + b',"label":1}',
        "a time beside them": known + b',"label":1,"ts":"12:00:01"}',
        "the last is text": known[:-20] + b'":"x"},"label":1}',
        "the last is beyond": known[:-20] + b'":1e31},"label":1}',
        "the last is given twice": known[:-20] + b'":1,"' + NAMES[0].encode() + b'":1},"label":1}',
        "one of the limit's is given twice": b'{"features":{' + MANY + b',"f0":0},"label":1}',
        "a list under a long name": b'{"features":{"' + LONG + b'":[' + b"1," * 8_999 + b'1]},"label":1}',
        "strings under a long name": b'{"features":{"' + LONG + b'":[' + b'"x",' * 8_999 + b'"x"]},"label":1}',
        "nulls under a long name": b'{"features":{"' + LONG + b'":{' + NULLS + b'}},"label":1}',
        "no label": known + b"}",
        "unknown label": known + b',"label":7}',
        "not finite at last": known[:-20] + b'":NaN},"label":1}',
        "cut short": known + b',"label":1',
        "one more bracket": known + b',"label":1}}',
        "far too many features": b'{"features":{' + b",".join(b'"%x":1' % i for i in range(90_000)) + b'},"label":1}',
        "one member again and again": filled(begin + b"1,", b'"a":1', b"}"),
        "a known member again and again": filled(begin + b"1,", b'"id":1', b"}"),
        "a long name": b'{"features":{"' + b"/" * (LIMIT - 60) + b'":1},"label":1}',
        "half of a pair": filled(begin + b"[", b'"\\ud83d\\ude00"', b',"\\ud83d"]}'),
        "brackets": b"[" * LIMIT,
        "quotes": b'"' * LIMIT,
        "backslashes": begin + b'"' + b"\\" * (LIMIT - 60) + b'"}',
        "a long number": begin + b"9" * (LIMIT - 60) + b".5}",
        "not UTF-8 at last": begin + b'"' + "日".encode() * 349_000 + b'\xff"}',
        "spaces": b'{"features":{"a":1}' + b" " * (LIMIT - 60) + b',"label":1,}',
    }
    for item in (
        b"0", b"1.5", b"{}", b"[]", b'{"":0}', b"[[]]", b'"a"', b'""', b'"\\u0041"', b'"\\\\"', b"null", b"NaN",
        b'{"a":[{}]}', b'"\\ud83d\\ude00"',
    ):  # fmt: skip
        found[f"unknown {item.decode()}"] = filled(begin + b"[", item, b"]}")
        found[f"a feature of {item.decode()}"] = filled(b'{"features":{"b":[', item, b']},"label":1}')
        found[f"features of {item.decode()}"] = filled(b'{"features":{', b'"b":' + item, b'},"label":1}')
        found[f"beside what is no number, {item.decode()}"] = filled(
            b'{"features":{"b":NaN,"c":[', item, b']},"label":1}'
        )
        found[f"a label of {item.decode()}"] = filled(b'{"features":{"b":1},"label":[', item, b"]}")
        found[f"a list of {item.decode()}"] = filled(b"[", item, b"]")
        found[f"{item.decode()}, and broken"] = filled(begin + b"[", item, b"]]}")
    return found


RECORDS = records()


def begun(identity: Identity) -> Learner:
    learner = Learner(identity)
    learner.begin({0: 0})
    # Compiled from here on.
    learner.apply(0, Records.of(0, [b'{"features":{"a":{},"b":{}},"label":1,"ts":"a"}']))
    return learner


IDENTITIES = {
    "named": Identity(),
    "hashed": Identity(features="hashed", bits=18),
    "whole": Identity(event=Places(features="", without=("x*",)), scale="standard"),
    "deep": Identity(event=Places(features="/features/b", label="/label/b", where={"/ts": ("a",)})),
}


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_no_record_holds_the_event_loop_for_50_ms(identity: Identity) -> None:
    """In time of the processor, the best of some: how busy the machine is says nothing about the program."""
    learner, costs = begun(identity), {}
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


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 11))
def test_where_a_slice_ends_changes_nothing(ends: list[bool], beyond: int) -> None:
    """Ended after any record, one of the others beyond the limits, so that the slice is read twice."""
    raws: list[bytes | None] = [f'{{"features":{{"n{i % 5}":{i}}},"label":{i % 2}}}'.encode() for i in range(10)]
    raws[4:4] = [raw for raw, _ in BAD_NAMED[:2]]
    raws[beyond] = b'{"features":{"new":1e31},"label":1}'
    whole, cut, asked = begun(Identity()), begun(Identity()), iter([*ends, *[True] * 20])
    assert whole.apply(0, Records.of(1, raws)).consumed == len(raws)
    at, slices = 0, 0
    while at < len(raws):
        at += cut.apply(0, Records.of(1 + at, raws[at:]), lambda: next(asked)).consumed
        slices += 1
    assert slices == sum(ends[:-1]) + 1
    assert state_digest(cut) == state_digest(whole)


class _Told:
    """A log that is ours, time that passes as it is looked at, and an observer of slices."""

    topic, held = "t", True

    def __init__(self, tick: float = 0.0) -> None:
        self.slices: list[int] = []
        self._now, self._tick = 0.0, tick

    def now(self) -> float:
        self._now += self._tick
        return self._now

    def time(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0

    def learned(self, records: int, seconds: float, delay: float) -> None:
        del seconds, delay
        self.slices.append(records)


@pytest.mark.parametrize(
    ("values", "tick", "slices"),
    [
        ([b"{}"] * 4250, 0.0, [200, 4000, 50]),
        ([None] * 201, 0.0, [200, 1]),
        ([b"x" * 400_000] * 5, 0.0, [2, 2, 1]),
        ([b"x" * 2_000_000, b"", b"x" * 2_000_000], 0.0, [1, 1, 1]),
        ([b"{}"] * 12, 0.001, [5, 5, 2]),
        ([b"{}"] * 3, 1.0, [1, 1, 1]),
    ],
)
def test_a_slice_ends_by_records_bytes_and_time(values: Sequence[bytes | None], tick: float, slices: list[int]) -> None:
    """The first is short; those after records that took no time have as many as may be."""
    told = _Told(tick)
    learner = begun(Identity())

    async def publish(letter: Any) -> None:
        del letter

    told.publish, told.set_aside = publish, lambda _: None  # type: ignore[attr-defined]
    learning = learn.Learning(told, None, told, told, learner.identity)  # type: ignore[arg-type]
    learning._model = held = learn._Model(learner, Source())
    asyncio.run(
        learning._take(
            held, 0, join_records([KafkaRecord(1 + i, 0, None, value, ()) for i, value in enumerate(values)])
        )
    )
    assert told.slices == slices
    assert learner.next == {0: 1 + len(values)}
