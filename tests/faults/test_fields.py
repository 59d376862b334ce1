"""Damage of every field that programs read from Redis, tested with every program that reads it.

Each kind of damage has a separate model, next to an undamaged one: the service reports the damaged ones and no other.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from service.cli import app as cli
from service.embedded.servers import Server
from service.snapshots.redis.store import MODELS, RedisStore, key
from tests.conftest import Run, Running, both_stores, clean_environment, event, wait
from tests.integration.kept import saved_thrice

pytestmark = pytest.mark.nightly

Damage = Callable[[Any, str], object]


def field(name: str, value: bytes) -> Damage:
    return lambda client, k: client.hset(k, name, value)


def replace_type(client: Any, k: str) -> None:
    """A string in place of the hash."""
    client.delete(k)
    client.set(k, "x")


def head(value: bytes) -> Damage:
    """Bytes that are not a head, with their digest."""
    return lambda client, k: client.hset(k, mapping={"head": value, "digest": hashlib.sha256(value).hexdigest()})


def write_newer_head(client: Any, k: str) -> None:
    """A head that a newer release wrote."""
    content = json.loads(client.hget(k, "head"))
    content["identity"]["fold"] += 1
    head(json.dumps(content).encode())(client, k)


def damage_version(client: Any, k: str) -> None:
    """Other bytes in the last kept version."""
    client.hset(k, f"v:{json.loads(client.hget(k, 'head'))['kept'][-1]['version']}", b"\xff\xfe")


def damage_blob(client: Any, k: str) -> None:
    """Other bytes in the first blob of the weights."""
    client.hset(k, f"b:{json.loads(client.hget(k, 'head'))['arrays']['w']['base'][0]}", b"\xff")


HEADLESS: dict[str, Damage] = {
    "digest-bytes": field("digest", b"\xff\xfe\x80"),
    "both-list": head(b"[]"),
    "string": replace_type,
    "newer": write_newer_head,
}
"""Damage that even a running learner finds."""
UNREAD: dict[str, Damage] = {
    "head-bytes": field("head", b"\xff\xfe{}"),
    "head-gone": lambda client, k: client.hdel(k, "head"),
    "blob-bytes": damage_blob,
}
"""Damage that a starting process finds; a running learner does not read the field, and its next save rewrites it."""
KEPT: dict[str, Damage] = {"kept-bytes": damage_version}
"""Damage that does not stop a service."""
KINDS = HEADLESS | UNREAD | KEPT
STRANGE = b"\xff\xfe"
SETTINGS = "[snapshots]\nkeep_every = 0.1\nkeep = 50\n"


def wait_until_named(service: Running, models: dict[str, str]) -> None:
    """Wait until the log reports each of these models as damaged, once, and no missing dependency."""

    def lines_with(words: str) -> list[str]:
        lines = service.log.read_text().splitlines()
        return [line for line in lines if words in line and ("not usable" in line or "learning stopped" in line)]

    for name in models.values():
        wait(partial(lines_with, f"model {name}: "), f"{name} is named")
    for name in models.values():
        assert len(lines_with(f"model {name}: ")) <= 2, "a follower and a learner report it once each"
    assert "Traceback" not in service.log.read_text()
    assert service.process.poll() is None
    assert service.metrics()['perceptron_missing_since_timestamp_seconds{dependency="redis"}'] == 0


def log_has(service: Running, words: str) -> bool:
    return words in service.log.read_text()


def answers(service: Running, model: str) -> bool:
    return service.http.post(f"/v1/models/{model}/predict", json={"features": {"a": 1}}).status_code == 200


@both_stores
async def test_damage_of_any_field_is_of_its_model_alone(run: Run, redis: Server, producer: Any, topic: str) -> None:
    """With a learner and a replica, running and starting, with topics by list and by pattern."""
    models = {kind: f"{topic}-{kind}" for kind in KINDS}
    every = [f"{topic}-whole", *models.values()]
    headless = {kind: models[kind] for kind in KINDS if kind in HEADLESS}
    damaged = {kind: models[kind] for kind in KINDS if kind not in KEPT}
    undamaged = [model for model in every if model not in damaged.values()]
    client: Any = Redis.from_url(f"redis://{redis.address}/0")

    async def produce() -> None:
        for name in every:
            await producer.send_and_wait(name, event({"a": 1}, 1))

    def wait_until_learned(service: Running, names: list[str], events: int) -> None:
        def is_saved(name: str) -> bool:
            model = service.http.get(f"/v1/models/{name}").json()
            return (model.get("events"), model.get("ahead")) == (events, 0)

        for name in names:
            wait(partial(is_saved, name), f"{name} is learned")

    def damage() -> None:
        for kind, change in KINDS.items():
            change(client, key(models[kind]))

    def replica() -> Running:
        return run("", "--no-learn", topic=f"^{topic}-", create=False)

    topic_flags = [flag for name in every[1:] for flag in ("-t", name)]
    learner, following = run(SETTINGS, *topic_flags, topic=every[0]), replica()
    await asyncio.to_thread(learner.up)
    for events in (1, 2):
        await produce()
        await asyncio.to_thread(wait_until_learned, learner, every, events)
    await asyncio.to_thread(wait, lambda: all(answers(following, name) for name in every), "the replica follows")
    client.sadd(MODELS, STRANGE)
    good = {name: client.dump(key(name)) for name in every}

    # Running.
    damage()
    await asyncio.to_thread(wait_until_named, following, headless)
    await produce()
    await asyncio.to_thread(wait_until_named, learner, headless)
    await asyncio.to_thread(wait_until_learned, learner, [name for name in every if name not in headless.values()], 3)
    for service in (learner, following):
        assert all(answers(service, name) for name in every), "a model that answered must still answer"
        for name in headless.values():
            assert f"model {name}: " in service.model(name)["stopped"]
            assert service.http.get(f"/v1/models/{name}/versions").status_code in {200, 503}
    # The old key is put back: learning continues.
    for name in headless.values():
        client.restore(key(name), 0, good[name], replace=True)
    await asyncio.to_thread(wait_until_learned, learner, every, 3)
    await asyncio.to_thread(wait_until_learned, following, every, 3)
    for service in (learner, following):
        assert not any(service.model(name)["stopped"] for name in every)
        assert await asyncio.to_thread(service.stop) == 0

    # Starting, by list and by pattern; a replica too.
    damage()
    expected = 3
    by_list = partial(run, SETTINGS, *topic_flags, topic=every[0])
    for start in (by_list, partial(run, SETTINGS, topic=f"^{topic}-"), replica):
        service = start()
        await produce()
        expected += start is not replica
        await asyncio.to_thread(wait_until_named, service, damaged)
        await asyncio.to_thread(wait_until_learned, service, undamaged, expected)
        assert all(answers(service, name) for name in undamaged)
        for name in damaged.values():
            answer = service.http.get(f"/v1/models/{name}")
            assert (answer.status_code, f"model {name}: " in answer.json()["detail"]) == (503, True)
        assert all(service.http.get(f"/v1/models/{name}/versions").status_code == 200 for name in undamaged)
        assert await asyncio.to_thread(service.stop) == 0
    client.close()


@both_stores
def test_each_command_says_in_one_line_what_is_damaged(
    redis: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reset repairs the model. Kafka gets no request, since the damage is found before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", clean_environment())
    url = f"redis://{redis.address}/0"
    client: Any = Redis.from_url(url)

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["perceptron", *arguments, "--redis", url])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        code, error = exit_info.value.code or 0, capsys.readouterr().err
        assert "Traceback" not in error
        return int(code), error

    async def save(name: str) -> None:
        store = RedisStore(url)
        async with store:
            await saved_thrice(store, name)

    kafka = ("-b", "127.0.0.1:1")
    for kind, change in KINDS.items():
        name = f"{topic}-{kind}"
        asyncio.run(save(name))
        change(client, key(name))
        for tool in (("inspect", *kafka), ("export",), ("verify", *kafka), ("rollback", *kafka, "--to", "2", "--yes")):
            code, error = command(*tool, "-t", name)
            if kind in KEPT:
                expected = {"inspect": 0, "export": 0, "verify": 3, "rollback": 1}[tool[0]]
                assert code == expected, error
                assert tool[0] != "rollback" or "kept version 2 is damaged" in error
            elif kind.startswith("blob") and tool[0] == "rollback":
                assert code in {1, 3}, error  # the kept version may not use that blob
            else:
                assert code == 1, (kind, tool, error)
                assert error.startswith(f"perceptron: model {name}: ")
                assert error.count("\n") == 1
                assert kind != "newer" or ("run that release" in error and "reset" not in error)
        assert command("reset", "-t", name, "--yes")[0] == 0
        assert not client.exists(key(name))
    client.close()


def test_a_set_of_models_that_is_none_holds_up_new_models_alone(run: Run, redis: Server, topic: str) -> None:
    """A replica with a pattern and a process that would begin a model report it."""
    client: Any = Redis.from_url(f"redis://{redis.address}/0")
    members = client.smembers(MODELS)
    running = run("", topic=f"{topic}-1").up()
    try:
        client.delete(MODELS)
        client.set(MODELS, "x")
        second, replica = run("", "-t", f"{topic}-1", topic=f"{topic}-2"), run("", "--no-learn", topic=f"^{topic}")
        for service in (second, replica):
            wait(partial(log_has, service, f"{MODELS} is not a set"), "it is reported")
            assert "Traceback" not in service.log.read_text()
        assert answers(running, f"{topic}-1")
        client.delete(MODELS)
        client.sadd(MODELS, f"{topic}-1", *members)
        second.up()
        wait(lambda: all(answers(replica, f"{topic}-{n}") for n in (1, 2)), "the models are found")
    finally:
        if client.type(MODELS) != b"set":
            client.delete(MODELS)
    client.close()
