"""A model of ten labels on real servers: scikit-learn's digits, by the product's own commands."""

import asyncio
from pathlib import Path

import pytest
from sklearn import datasets

from service.embedded.servers import Server
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.load import load
from service.snapshots.codec import readable
from service.snapshots.head import Head
from service.snapshots.redis.store import RedisStore
from tests.checks import state_digest
from tests.conftest import DEADLINE, TAKEOVER_SECONDS, Run, create_topic, event, perceptron
from tests.integration.kept import Tool
from tests.oracle import Classes

SETTINGS = """[model]
features = "positional"
dimension = 64
labels = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[snapshots]
keep_every = 0.2
"""


async def saved(store: RedisStore, topic: str, offset: int) -> Head:
    """The newest head, once it covers partition 0 up to this offset."""
    async with asyncio.timeout(DEADLINE):
        while not (found := await store.head(topic)) or readable(topic, *found).next["0"].offset < offset:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return readable(topic, *found)


@pytest.mark.nightly
async def test_digits_through_two_kills(
    run: Run, tool: Tool, kafka: Server, store: RedisStore, topic: str, tmp_path: Path
) -> None:
    """Produced from a file, learned by three processes, verified: the fold of the log, bit for bit."""
    data = datasets.load_digits()
    rows = list(zip(data.data.tolist(), data.target.tolist(), strict=True))
    events, file = [event(x, y) for x, y in rows], tmp_path / "digits.jsonl"
    await create_topic(kafka, topic)
    service = await asyncio.to_thread(run(SETTINGS, session_timeout=TAKEOVER_SECONDS).up)
    for start, end in ((0, 600), (600, 1200), (1200, len(rows))):
        file.write_bytes(b"\n".join(events[start:end]))
        sent = await asyncio.to_thread(
            perceptron, "-c", str(service.config), "produce", "-t", topic, "-b", kafka.address, str(file)
        )
        assert sent.returncode == 0, sent.stderr
        if start == 0:
            await saved(store, topic, 1)  # the second is killed wherever it is
        if end < len(rows):
            service.kill()
            service = await asyncio.to_thread(run(SETTINGS, session_timeout=TAKEOVER_SECONDS).up)
    head = await saved(store, topic, len(rows))
    fold, identity = Classes(range(10)), load(str(service.config), {"topics": [topic]}).of(topic).identity()
    fold.fold(events)
    learner = Learner(identity)
    learner.begin({0: 0})
    learner.apply(0, Records.of(0, list(events)))
    assert learner.weights.ravel().tolist() == fold.vector
    assert head.counts.confusion == learner.counts.confusion == fold.confusion
    assert (head.counts.mistakes, head.counts.updates) == (fold.mistakes, fold.updates)
    assert head.state_digest == state_digest(learner)
    found = await tool.verify(settings=service.config)
    assert (found["equal"], found["replayed_events"]) == (True, len(rows))
    assert found["replayed_state_digest"] == head.state_digest
    answered = set()
    for x, _ in rows[-60:]:
        scores = [s + sum(v * w[k] for v, w in zip(x, fold.w.values(), strict=True)) for k, s in enumerate(fold.bias)]
        answer = service.predict({"features": x}).json()
        assert (answer["label"], answer["score"]) == (scores.index(max(scores)), max(scores))
        answered.add(answer["label"])
    assert answered == set(range(10))
