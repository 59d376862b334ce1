"""Fetch responses that are altered on their way from the broker, each topic in another way."""

import asyncio
import contextlib
import io
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.protocol.fetch import FetchResponse_v11

from service.embedded.servers import Server
from tests.batches import add_checksum
from tests.conftest import DEADLINE, Running, create_topic, event, wait
from tests.faults.proxy import KafkaProxy
from tests.faults.test_log_faults import batches
from tests.oracle import Fold

pytestmark = pytest.mark.nightly

FETCH = 1
BATCHES, RECORDS = 40, 10
FIELDS = {
    "base": (0, ">q"), "length": (8, ">i"), "epoch": (12, ">i"), "magic": (16, ">b"), "checksum": (17, ">I"),
    "attributes": (21, ">h"), "last": (23, ">i"), "time": (27, ">q"), "count": (57, ">i"),
}  # fmt: skip
"""Position and format of fields of a batch's head."""


@dataclass
class Part:
    """A partition of a response."""

    topic: str
    numbers: list[Any]
    """Partition, error code, high watermark, last stable offset, log start, aborted transactions, preferred replica."""
    batches: list[bytearray]
    earlier: list[bytearray]
    """The batches of an earlier response."""
    others: list["Part"] = field(default_factory=list)
    """Parts that are added to the response."""

    def copy(self, topic: str = "", number: int | None = None) -> None:
        """Add this partition a second time, perhaps under another name."""
        numbers = [self.numbers[0] if number is None else number, *self.numbers[1:]]
        self.others.append(Part(topic or self.topic, numbers, [*self.batches], []))


Alteration = Callable[[Part], object]


def change(name: str, new: Callable[[int], int], mend: bool = False) -> Alteration:
    """Change a field of the second batch's head, or of the first one's; `mend` makes its checksum right."""

    def apply(part: Part) -> None:
        if part.batches:
            i, (at, form) = min(1, len(part.batches) - 1), FIELDS[name]
            [old] = struct.unpack_from(form, part.batches[i], at)
            struct.pack_into(form, part.batches[i], at, new(old))
            if mend:
                part.batches[i] = bytearray(add_checksum(part.batches[i]))

    return apply


def number(i: int, new: object) -> Alteration:
    return lambda part: part.numbers.__setitem__(i, new)


def replace(new: Callable[[list[bytearray], list[bytearray]], Sequence[bytes | bytearray]]) -> Alteration:
    """Replace the batches, given those of an earlier response."""

    def apply(part: Part) -> None:
        part.batches = [*map(bytearray, new(part.batches, part.earlier))]

    return apply


def cut(size: Callable[[int], int]) -> Alteration:
    return replace(lambda now, _: [b"".join(now)[: max(0, size(len(b"".join(now))))]])


def flip(at: int) -> Alteration:
    def apply(part: Part) -> None:
        if part.batches:
            part.batches[0][at % len(part.batches[0])] ^= 16

    return apply


ALTERATIONS: dict[str, Alteration] = {
    **{f"base{n:+}": change("base", lambda old, n=n: old + n) for n in (1, -1, 7, 1000, -1000)},  # type: ignore[misc]
    "negative-base": change("base", lambda _: -1),
    **{f"length{n:+}": change("length", lambda old, n=n: old + n) for n in (1, -1, 100)},  # type: ignore[misc]
    **{f"length={n}": change("length", lambda _, n=n: n) for n in (0, -1, 2**31 - 1)},  # type: ignore[misc]
    **{f"magic={n}": change("magic", lambda _, n=n: n) for n in (0, 1, 3, -1)},  # type: ignore[misc]
    **{f"{name}-damaged": change(name, lambda old: old ^ 1) for name in FIELDS if name not in ("base", "length")},
    **{f"codec={n}": change("attributes", lambda _, n=n: n, mend=True) for n in (1, 2, 3, 4, 5, 7)},  # type: ignore[misc]
    **{f"last{n:+}": change("last", lambda old, n=n: old + n, mend=True) for n in (-1, -1000)},  # type: ignore[misc]
    **{f"count{n:+}": change("count", lambda old, n=n: old + n, mend=True) for n in (1, -1, -1000)},  # type: ignore[misc]
    **{f"flip-{at}": flip(at) for at in (61, 62, 63, 70, -1)},
    "batch-twice": replace(lambda now, _: [*now[:1], *now]),
    "all-twice": replace(lambda now, _: now + now),
    "reversed": replace(lambda now, _: now[::-1]),
    "rotated": replace(lambda now, _: now[1:] + now[:1]),
    "first-lost": replace(lambda now, _: now[1:]),
    "last-lost": replace(lambda now, _: now[:-1]),
    "second-lost": replace(lambda now, _: now[:1] + now[2:]),
    "all-lost": replace(lambda _, __: []),
    "earlier": replace(lambda _, earlier: earlier),
    "earlier-first": replace(lambda now, earlier: earlier + now),
    "earlier-last": replace(lambda now, earlier: now + earlier),
    "zeros": replace(lambda now, _: [*now, bytes(100)]),
    "zeros-first": replace(lambda now, _: [bytes(100), *now]),
    "text": replace(lambda now, _: [*now, b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    **{f"cut-{n}": cut(lambda size, n=n: size - n) for n in (1, 30, 300)},  # type: ignore[misc]
    **{f"only-{n}": cut(lambda _, n=n: n) for n in (5, 12, 61)},  # type: ignore[misc]
    "half": cut(lambda size: size // 2),
    "again": lambda part: part.copy(),
    "other-number": lambda part: part.copy(number=1),
    "negative-number": lambda part: part.copy(number=-1),
    "other-topic": lambda part: part.copy("nobody-asked"),
    "renamed": lambda part: setattr(part, "topic", "nobody-asked"),
    "renumbered": number(0, 7),
    **{f"error={n}": number(1, n) for n in (1, 2, 3, 5, 6, 7, 9, 29, 56, 74, 76, -1, 999)},
    **{f"{name}={n}": number(i, n) for i, name in ((2, "high"), (3, "stable"), (4, "start")) for n in (-1, 0, 10**9)},
    **{f"aborted-{i}": number(5, [pair]) for i, pair in enumerate(((-1, 0), (0, 0), (7, 10**9)))},
    "preferred-replica": number(6, 99),
}  # fmt: skip


def _alter(alterations: dict[str, Alteration]) -> Callable[[int, int, bytes], bytes]:
    """Alter each third response with records of a topic, so that no alteration is met twice at one place."""
    turns, earlier = defaultdict[str, int](int), defaultdict[str, list[bytearray]](list)

    def alter(key: int, version: int, reply: bytes) -> bytes:
        if key != FETCH or version != FetchResponse_v11.API_VERSION:
            return reply
        response = FetchResponse_v11.decode(io.BytesIO(reply[4:]))
        topics = list[Any]()
        for topic, partitions in response.topics:
            for *numbers, data in partitions:
                raw = data or b""
                part = Part(topic, numbers, [bytearray(raw[a:b]) for *_, a, b in batches(raw) if b <= len(raw)],
                            earlier[topic])  # fmt: skip
                if part.batches and topic in alterations:
                    turns[topic] += 1
                    now = [bytearray(batch) for batch in part.batches]
                    if turns[topic] % 3 == 1:
                        alterations[topic](part)
                    earlier[topic] = now
                for each in (part, *part.others):
                    topics.append((each.topic, [(*each.numbers, b"".join(each.batches))]))
        response.topics = topics
        return bytes(reply[:4] + response.encode())

    return alter


async def test_altered_fetch_responses(
    kafka: Server, proxy: KafkaProxy, redis: Server, topic: str, tmp_path: Any
) -> None:
    """Each topic is learned as the plain fold, or its learning stops with a reason. The process and others go on."""
    assert len(ALTERATIONS) >= 60
    names = {f"{topic}-{i}": name for i, name in enumerate(ALTERATIONS)}
    await asyncio.gather(*(create_topic(kafka, name) for name in names))
    proxy.alter = _alter({name: ALTERATIONS[kind] for name, kind in names.items()})
    rng, sent = random.Random(1), defaultdict[str, list[bytes]](list)

    async def produce(batches: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.address) as producer:
            for _ in range(batches):
                for name in names:
                    batch = producer.create_batch()
                    for _ in range(RECORDS):
                        raw = event({f"n{rng.randrange(5)}": rng.randint(-9, 9)}, rng.randrange(2))
                        sent[name].append(raw)
                        batch.append(key=None, value=raw, timestamp=None)
                    await producer.send_batch(batch, name, partition=0)
            await producer.flush()

    await produce(BATCHES // 2)  # the first responses, which are altered, have all of these
    running = Running("", proxy.address, redis.address, tmp_path, "", "-g", f"g-{topic}", "--create-topics",
                      topics=names)  # fmt: skip
    with contextlib.closing(running):
        await asyncio.to_thread(running.up)
        await produce(BATCHES // 2)
        reasons = dict[str, str]()

        def all_ended() -> bool:
            assert running.process.poll() is None, running.log.read_text()
            for name, kind in names.items():
                model = running.model(name)
                if model["stopped"]:
                    reasons[kind] = model["stopped"]
                elif model["next"]["0"] < len(sent[name]) or model["ahead"]:
                    return False
            return True

        await asyncio.to_thread(wait, all_ended, "each topic is learned, or stops", 3 * DEADLINE)
        metrics = running.metrics()
        for name, kind in names.items():
            running.topic, model = name, running.model(name)
            fold = Fold().fold(sent[name][: model["next"]["0"]])
            if kind == "second-lost":  # a response without whole batches is what compaction leaves
                assert model["events"] + 10 * metrics[f'perceptron_offset_gaps_total{{model="{name}"}}'] == fold.events
            else:
                assert (model["events"], running.vector()) == (fold.events, fold.vector), kind
        assert not {kind: why for kind, why in reasons.items() if "cannot be read" not in why}
        assert len(reasons) < len(ALTERATIONS) / 4, reasons
        assert metrics["perceptron_ignored_partitions_total"] > 0
        assert "Traceback" not in running.log.read_text()
        assert await asyncio.to_thread(running.stop) == 0
