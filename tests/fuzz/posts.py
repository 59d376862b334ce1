"""Mutated posts to the application in process, against the judge: `python -m tests.fuzz.posts 100000 [SEED]`.

It asserts for each: the status that the judge expects, and a schema in `/openapi.json`; and one fault for each bad
record, in their order. In the end the topics, on a real Kafka, have exactly the records that the judge expects, at the
places that the answers name, and a model reads each of its labels as a label.
"""

import asyncio
import json
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from service.embedded import servers
from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import Identity, JoinRules, Places
from service.serving.posting import Posting
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.topic_writer import TopicWriter
from tests.conftest import create_topic, read_all
from tests.fuzz import judge
from tests.fuzz.events import IDENTITIES, JOIN, TIGHT, event, label, nested, record
from tests.fuzz.requests import LIMITS, MEDIA, METHODS, HttpRequest, ask, check, strict
from tests.fuzz.texts import Texts
from tests.unit.applications import serving

PARTITIONS, CONCURRENT = 3, 50
NDJSON = b"application/x-ndjson"
SHARED = replace(JOIN, own_topic=False)
POSTED_IDENTITIES = (
    Identity(join=JOIN),
    Identity(labels=(0, 1), join=replace(JOIN, label=None, label_value=1)),
    Identity(
        labels=("no", "yes"), **TIGHT,
        join=replace(SHARED, id="/of/id", label="/is/~1", where={"/a/b": ("age", 1), "/~0": (True,)}),
    ),
    Identity(
        event=Places(features="", label="/b", id="/c", where={"/age": (1, True)}), labels=(False, True),
        join=replace(JOIN, id="/c", label="/b", where={"/age": (2,)}),
    ),
    Identity(
        features="hashed", bits=6, labels=(2, 1.5), join=replace(SHARED, where={"/c": (2,)}),
        event=Places(features="/a", label="/a/label", id="/é", where={"/c": (1,)}),
    ),
    Identity(features="positional", dimension=2, join=replace(SHARED, label=None, label_value=False)),
    Identity(unlabelled="skip"), *IDENTITIES[:12],
)  # fmt: skip


class PostedModel(NamedTuple):
    name: str
    identity: Identity
    share: float
    """The share of its predictions that is logged."""


MODELS = [PostedModel(f"m{i}", identity, 1.0 if i % 3 else 0.5) for i, identity in enumerate(POSTED_IDENTITIES)]


def label_record(texts: Texts, identity: Identity, places: JoinRules) -> bytes:
    """A label with its parts at these places, sometimes with an unusual part."""
    chance, random = texts.chance, texts.random
    id_ = texts.string(texts.name()) if chance(0.7) else str(random.randrange(-9, 10**6))
    parts = [(places.id, id_ if chance(0.95) else texts.value())]
    if places.label is not None:
        parts.append((places.label, label(texts, identity) if chance(0.9) else random.choice(("null", texts.value()))))
    wheres = ((pointer, json.dumps(random.choice(values))) for pointer, values in places.where.items())
    parts += [(pointer, text if chance(0.95) else texts.value()) for pointer, text in wheres]
    members = [nested(texts, judge.names(pointer), text) for pointer, text in parts]
    if chance(0.1):
        members.append(random.choice((*members, (texts.name(), texts.value()))))
    random.shuffle(members)
    raw = texts.object(members[chance(0.02) :]).encode(errors="surrogatepass")
    return texts.mutate(raw) if chance(0.3) else raw


def body(texts: Texts, identity: Identity, kind: str, is_lines: bool) -> bytes:
    """A body with events or labels, sometimes with an unusual part."""
    chance, random, join = texts.chance, texts.random, identity.join or None

    def one() -> bytes:
        if join and (kind == "labels" or (not join.own_topic and chance(0.3))):
            return label_record(texts, identity, replace(join, **judge.POSTED) if kind == "labels" else join)
        labelled = not (join or identity.unlabelled) or chance(0.4)
        return event(texts, identity, labelled) if chance(0.6) else record(texts, identity, labelled) or b""

    if not is_lines and chance(0.5):
        return one()
    rows = [one() for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 5)))]
    if is_lines:
        end = random.choice((b"\r\n", b"\n\n")) if chance(0.05) else b"\n"
        return end.join(row.replace(b"\n", b" ") if chance(0.95) else row for row in rows) + random.choice((end, b""))
    listed = texts.list([row.decode(errors="surrogateescape") for row in rows])
    members = [(kind, listed if chance(0.98) else texts.value())]
    if chance(0.05):
        members.append(random.choice((*members, (texts.name(), texts.value()))))
    raw = (texts.space() + texts.object(members)).encode(errors="surrogateescape")
    return texts.mark(texts.mutate(raw) if chance(0.3) else raw)


def random_post(texts: Texts) -> tuple[HttpRequest, PostedModel, str]:
    """A request, its model, and what it posts."""
    chance, random = texts.chance, texts.random
    model, is_lines = random.choice(MODELS), chance(0.3)
    kind = "labels" if chance(0.5 if model.identity.join else 0.03) else "events"
    raw = body(texts, model.identity, kind, is_lines) + b" " * (chance(0.002) * LIMITS.max_body_bytes)
    media = NDJSON if is_lines != chance(0.02) else b"application/json"
    if chance(0.05):
        media = random.choice((NDJSON.upper() + b" ; charset=utf-8", *MEDIA))
    name = model.name if chance(0.98) else quote(texts.name() or "x", safe="")
    method = "POST" if chance(0.99) else random.choice(METHODS)
    return HttpRequest(method, f"/v1/models/{name}/{kind}", "", media, raw, chance(0.01)), model, kind


def expected(
    request: HttpRequest, model: PostedModel, kind: str
) -> tuple[set[int], list[judge.Written | None], list[judge.Faults]]:
    """The statuses that a post may get; if it is read, its records, and the faults of each bad one."""
    media = (request.media or b"").split(b";")[0].strip().lower()
    refusals = (
        (request.method != "POST", {404, 405}),
        (request.path != f"/v1/models/{model.name}/{kind}" or (kind == "labels" and not model.identity.join), {404}),
        (media not in (NDJSON, b"application/json") and not media.endswith(b"+json"), {415}),
        (request.cut, {400, 413}),
        (len(request.body) > LIMITS.max_body_bytes, {413}),
    )
    for is_refused, statuses in refusals:
        if is_refused:
            return statuses, [], []
    posted = judge.post(request.body, kind, media == NDJSON, model.identity, LIMITS.max_instances, model.share)
    return {422 if posted[1] else 200}, *posted


def check_record(stored: Any, written: judge.Written, identity: Identity) -> None:
    """Raise AssertionError unless a record on Kafka is the one that the judge expects."""
    (id_, value), join = written, identity.join
    assert (stored.key, stored.headers) == (None if id_ is None else id_.encode(), ()), written
    assert not stored.key or zlib.crc32(stored.key) % PARTITIONS == stored.partition, written
    if isinstance(value, bytes) or not join:
        assert stored.value == value
        return
    assert json.dumps(strict(stored.value), sort_keys=True) == json.dumps(value, sort_keys=True)
    label_, _ = judge.event(stored.value, identity, False, join)
    assert getattr(label_, "id", None) == id_, f"not its label: {stored.value}"
    assert join.own_topic or judge.event(stored.value, identity, False) == (None, set()), written


async def fuzz(kafka: servers.Server, topic: str, requests: int, seed: int = 0) -> Counter[int]:
    """Post this many requests of one seed, some at a time, to two topics.

    Returns the number of responses by status, and as that of 0 the number of records.
    """
    topics, cluster = (f"{topic}-events", f"{topic}-labels"), Cluster(kafka.address)
    for name in topics:
        await create_topic(kafka, name, PARTITIONS)
    writers = [TopicWriter(cluster, name, create=False, warn=print) for name in topics]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    postings = {
        name: Posting(identity, writers[0], writers[identity.join.own_topic] if identity.join else None, share)
        for name, identity, share in MODELS
    }
    app = serving(http=LIMITS, posting_of=postings.get)
    document = json.loads(json.dumps(app.api.openapi()))
    texts, counts = Texts(Random(seed)), Counter[int]()
    places = dict[tuple[str, int, int], tuple[judge.Written, Identity]]()

    async def post(request: HttpRequest, model: PostedModel, kind: str) -> None:
        try:
            response = await ask(app, request, [request.body[:20], request.body[20:]])
            check(document, request, response)
            statuses, records, faults = expected(request, model, kind)
            assert response.status in statuses, f"{response} instead of {statuses}: {faults}"
            answer = json.loads(response.body)
            for error, own in zip(answer.get("errors", ()), faults, strict=True):
                assert judge.explains(own, error["pointer"], error["reason"]), f"{error} instead of {own}"
            for place, written in zip(answer.get("records", ()), () if faults else records, strict=True):
                assert (place is None) == (written is None), f"{place} instead of {written}"
                if written:
                    places[place["topic"], place["partition"], place["offset"]] = written, model.identity
        except Exception as error:
            error.add_note(f"seed {seed}, {model}: {request}")
            raise
        counts[response.status] += 1

    for begin in range(0, requests, CONCURRENT):
        use_compiled_reader(begin // CONCURRENT % 2 == 1)
        await asyncio.gather(*(post(*random_post(texts)) for _ in range(begin, min(begin + CONCURRENT, requests))))
    use_compiled_reader(False)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for stored in [each for name in topics for i in range(PARTITIONS) for each in await read_all(kafka, name, i)]:
        check_record(stored, *places.pop((stored.topic, stored.partition, stored.offset)))
        counts[0] += 1
    assert not places, "not in the topics"
    return counts


if __name__ == "__main__":
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, servers.start_kafka(Path(folder)) as broker:
        counted = asyncio.run(fuzz(broker, "posts", *map(int, sys.argv[1:])))
    records, took = counted.pop(0), time.perf_counter() - began
    print(f"{counted.total()} posts, {records} records in {took:.0f} s, 0 violations: {dict(counted.most_common())}")
