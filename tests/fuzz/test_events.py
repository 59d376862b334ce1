"""Runs of the fuzzer of events, which must find no violation. EVENTS=1000000 makes a long run."""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from service.learning.columns.columns import columns_for
from service.learning.events.event_reader import EventReader, use_compiled_reader
from service.learning.events.read_events import REASONS
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity
from tests.fuzz import events
from tests.fuzz.events import IDENTITIES, bits, fuzz, record
from tests.fuzz.texts import TOKENS, Texts

COMPLETIONS = (
    b"}", b"]}", b'"}', b'":1}', b"\n}", b"\n\n}abcd", b" }", b'},"label":1}', b',"label":1}', b'"a":1},"label":1}',
    b"0", b"e5}", b"\xa9", b"1}", b":1}", b"alse}", b'\n,"label":true}',
)  # fmt: skip
"""Bytes that would complete a truncated value if the reader read beyond its end."""


@pytest.fixture(autouse=True)
def reading() -> Iterator[None]:
    """Reset the reader afterwards: later tests in this process use the default."""
    yield
    use_compiled_reader(False)


def test_mutated_events_are_read_as_the_judge_reads_them() -> None:
    counts = fuzz(int(os.environ.get("EVENTS", "12000")))
    # The test is meaningful only if both occur, for every reason.
    assert 0.25 < counts["accepted"] / counts.total() < 0.8
    assert set(counts) >= {*REASONS, "skipped"} - {"not-msgpack"}  # only JSON is mutated


def test_the_careful_reader_reads_as_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same streams, read by one reader only, have the same events and the same reasons."""
    counts = []
    for compiled in (True, False):
        monkeypatch.setattr(events, "use_compiled_reader", lambda _, use=compiled: use_compiled_reader(use))
        counts.append(fuzz(2500, 77))
    assert counts[0] == counts[1]


def test_bytes_after_a_value_change_nothing() -> None:
    """Each value before random bytes, and truncated before bytes that would complete it."""
    random = Random(4)
    for identity in IDENTITIES:
        texts = Texts(random)
        values = [value for value in (record(texts, identity) for _ in range(300)) if value is not None]
        values += [value[: random.randrange(len(value))] for value in values if value]
        values += [b"{", b'{"', b'{"a', b'{"a":', b'{"a":1', b'{"a":1,', b'{"features":{', b'{"features":{"a":1']
        tails = [
            random.choice((random.randbytes(9), random.choice(COMPLETIONS), random.choice(TOKENS))) for _ in values
        ]
        expected, actual = (_batch(identity, values, suffixes) for suffixes in ([b"\0"] * len(values), tails))
        assert expected == actual, identity


def _buffer(values: list[bytes], tails: list[bytes]) -> ValueBuffer:
    ends = np.cumsum([len(value) + len(tail) for value, tail in zip(values, tails, strict=True)])
    begins = np.concatenate([[0], ends[:-1]])
    data = b"".join(value + tail for value, tail in zip(values, tails, strict=True))
    return ValueBuffer(np.frombuffer(data + bytes(8), np.uint8), begins, begins + [len(value) for value in values])


def _batch(identity: Identity, values: list[bytes], tails: list[bytes]) -> list[Any]:
    """The decoder's result for values that are followed by these bytes."""
    use_compiled_reader(True)
    events = EventReader(identity).read(_buffer(values, tails))
    batch = columns_for(identity).decode(events)
    arrays = (batch.starts, batch.columns, batch.values, batch.labels, batch.weights)
    rejected = [(reject.record, reject.reason) for reject in events.rejects]
    return [*map(bits, arrays), [*batch.records], [*batch.names], [*events.skipped], [*events.ids], rejected]
