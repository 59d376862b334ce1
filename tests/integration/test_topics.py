"""Many topics in one process: a pattern finds them, and no topic delays another."""

import asyncio
import random
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, Running, create_topic, delete_topic, event, send, trim, wait
from tests.integration.kept import Tool
from tests.oracle import Fold

pytestmark = pytest.mark.nightly


def _is_logged(service: Running, text: str) -> bool:
    return text in service.log.read_text()


async def wait_until_learned(service: Running, topic: str, events: list[bytes]) -> Any:
    """Wait until these events are learned and saved; compare counts and weights with the oracle's."""

    def is_saved() -> Any:
        answer = service.http.get(f"/v1/models/{topic}")
        model = answer.json() if answer.status_code == 200 else {"events": -1}
        return model if model["events"] == len(events) and model["ahead"] == 0 else None

    model = await asyncio.to_thread(wait, is_saved, f"{topic} is learned")
    fold = Fold().fold(events)
    weights = service.http.get(f"/v1/models/{topic}/weights?limit=10000").json()
    assert (model["mistakes"], weights["bias"]) == (fold.mistakes, fold.bias)
    assert [w["weight"] for w in weights["weights"]] == list(fold.w.values())
    return model


async def test_topics_that_match_a_pattern_are_learned_once_they_exist(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """A replica, which knows them only from the store, follows them too. No process learns dead letters."""
    pattern = f"^{topic}-\\d+$"
    settings = f"[models.'{pattern}']\neta = 2.0\n[models.{topic}-2]\neta = 3.0\n"
    await create_topic(kafka, f"{topic}-1")
    service = run(settings, topic=pattern)
    replica = run(settings, "--no-learn", "-b", "127.0.0.1:1", topic=pattern, create=False)
    await asyncio.to_thread(service.up)
    for number, eta in ((1, 2.0), (2, 3.0)):
        name = f"{topic}-{number}"
        if number > 1:
            await create_topic(kafka, name)
            await create_topic(kafka, f"{topic}-other")
        raw = event({"a": 1}, 1)
        await producer.send_and_wait(name, raw)
        for process in (service, replica):

            def is_answering(process: Running = process, name: str = name, eta: float = eta) -> bool:
                answer = process.http.get(f"/v1/models/{name}/weights")
                return bool(answer.status_code == 200 and answer.json()["bias"] == eta)

            await asyncio.to_thread(process.up)
            await asyncio.to_thread(wait, is_answering, f"{name} answers")
    names = [m["model"] for m in service.http.get("/v1/models").json()["models"]]
    assert sorted(names) == [f"{topic}-1", f"{topic}-2"]
    assert service.log.read_text().count("topic found") == 2
    assert not _is_logged(service, "no topic matches a pattern")


async def test_a_topic_that_is_deleted_stops_its_model(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """The log, the model and `check` say so, and nothing creates it again. Another topic of the name is recognised."""
    service = await asyncio.to_thread(run("create_topics = true").up)
    await send(producer, topic, [event({"a": i}, i % 2) for i in range(20)])
    await asyncio.to_thread(service.wait_for, 20)
    await delete_topic(kafka, topic)
    reason = await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops", 30)
    assert f"topic {topic} does not exist" in reason
    assert (service.is_ok("/readyz"), service.predict({"features": {"a": 1}}).status_code) == (True, 200)
    learning = f'perceptron_learning{{model="{topic}"}}'
    await asyncio.to_thread(wait, lambda: service.metrics()[learning] == 0, "it does not learn", 30)
    [line] = [line for line in service.log.read_text().splitlines() if reason in line]
    assert "[warning  ]" in line
    checked = await tool("check", settings=service.config)
    assert (checked.returncode, f"\nfail  {reason}\n" in checked.stdout) == (1, True), checked.stdout
    assert await asyncio.to_thread(service.stop) == 0
    service = await asyncio.to_thread(run("create_topics = true").up)
    await asyncio.to_thread(wait, lambda: service.model()["stopped"] == reason, "the next process says the same")
    await create_topic(kafka, topic)
    other = "holds offsets 0 to 0, but the snapshot continues at 20"
    await asyncio.to_thread(wait, lambda: other in str(service.model()["stopped"]), "the new topic is recognised")
    await send(producer, topic, [event({"b": i}, i % 2) for i in range(30)])
    checked = await tool("check")
    assert checked.returncode == 1
    assert "the record at offset 19 of partition 0 is not the one that was learned" in checked.stdout


@pytest.mark.long
async def test_no_topic_holds_up_another(run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str) -> None:
    """The good topic is learned next to bad, trimmed, absent and slow ones, and one without a dead-letter topic."""
    names = {kind: f"{topic}-{kind}" for kind in ("poisoned", "trimmed", "stuck", "absent", "slow", "good")}
    for kind, name in names.items():
        if kind != "absent":
            await create_topic(kafka, name)
        if kind not in {"absent", "stuck"}:
            await create_topic(kafka, f"{name}.dead-letters")
    rng = random.Random(8)
    for _ in range(2000):
        await producer.send(names["poisoned"], b"bad")
        await producer.send(names["trimmed"], event({"a": 1}, rng.choice([0, 1])))
        await producer.send(names["stuck"], b"bad")
    slow = [event({f"n{i}": rng.randrange(9) for i in range(5000)}, rng.choice([0, 1])) for _ in range(100)]
    await send(producer, names["slow"], slow)
    good = [event({f"n{rng.randrange(9)}": rng.gauss(0, 1)}, rng.choice([0, 1])) for _ in range(3000)]
    await send(producer, names["good"], good[:2000])
    await trim(kafka, names["trimmed"], 1000)
    flags = [flag for kind, name in names.items() if kind != "good" for flag in ("-t", name)]
    service = run("", *flags, topic=names["good"], create=False)
    await asyncio.to_thread(wait, lambda: service.is_ok("/livez"), "it listens")
    await wait_until_learned(service, names["good"], good[:2000])
    await send(producer, names["good"], good[2000:])
    await wait_until_learned(service, names["good"], good)
    await wait_until_learned(service, names["slow"], slow)
    poisoned_model = partial(service.model, names["poisoned"])
    await asyncio.to_thread(wait, lambda: poisoned_model()["rejected"] == {"not-json": 2000}, "the poisoned is read")
    for message in (
        "begin at offset 0 of partition 0, which holds 1000 to 2000: say where with --start-at",
        f"dead letters cannot be written to {names['stuck']}.dead-letters, so saves wait",
    ):
        await asyncio.to_thread(wait, partial(_is_logged, service, message), message)
    assert service.http.get(f"/v1/models/{names['absent']}").status_code == 503
    # The absent topic is created and learned.
    await create_topic(kafka, names["absent"])
    await producer.send_and_wait(names["absent"], good[0])
    await wait_until_learned(service, names["absent"], good[:1])


@pytest.mark.parametrize("is_age", [True, False])
async def test_a_model_begins_at_a_time(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, is_age: bool
) -> None:
    """Each partition begins at its first record since then, or at its end if all are older."""
    await create_topic(kafka, topic, 2)
    now = time.time()
    for partition, hours in ((0, (5, 4, 2, 1)), (1, (5, 4))):
        for age in hours:
            milliseconds = int((now - age * 3600) * 1000)
            await producer.send_and_wait(topic, event({"a": 1}, 1), partition=partition, timestamp_ms=milliseconds)
    start = "3h" if is_age else datetime.fromtimestamp(now - 3 * 3600, UTC).isoformat()
    service = await asyncio.to_thread(run("", "--start-at", start).up)
    model = await asyncio.to_thread(service.wait_for, 4)
    assert (model["events"], model["covered"]) == (2, {"0": [[2, 4]], "1": [[2, 2]]})
