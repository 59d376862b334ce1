"""A model in a Redis Cluster: each command works, and an answer that a key has moved is followed."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.snapshots.redis.store import key
from tests.conftest import Run, Running, perceptron, wait
from tests.integration.kept import KEEP_OFTEN, learn_and_keep, newest_within, random_events
from tests.redis_cluster import move_slot, redis_cluster


@pytest.mark.nightly
async def test_a_model_lives_in_a_cluster(run: Run, kafka: Server, producer: AIOKafkaProducer, tmp_path: Path) -> None:
    settings = f'redis.cluster = true\nkafka.bootstrap_servers = "{kafka.address}"\n{KEEP_OFTEN}'
    with redis_cluster(tmp_path) as nodes:
        service = await asyncio.to_thread(run(settings, redis_address=nodes[0].address).up)
        versions = await learn_and_keep(service, producer, random_events(300))
        await asyncio.to_thread(check, run, service, settings, nodes, newest_within(versions, 200)["version"])


def check(run: Run, service: Running, settings: str, nodes: list[Server], version: int) -> None:
    """It is listed, moved to another node, restored, rolled back, and reset while its last version answers."""
    topic, alias = service.topic, f"{service.topic}-alias"

    def command(*arguments: str) -> str:
        result = perceptron("-c", str(service.config), *arguments, "--redis", service.redis_url)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    replica = run(settings, "--no-learn", "-t", f"^{topic}", topic="", redis_address=nodes[1].address, create=False)
    wait(lambda: replica.is_ok(f"/v1/models/{topic}"), "the replica lists the model")
    move_slot(nodes, key(topic))
    assert f"model {topic}: goes on with version" in command("check", "-t", topic)
    assert "300" in command("inspect", "-m", topic)
    command("promote", topic, "--as", alias)
    command("rollback", "-m", topic, "--to", str(version), "--yes")
    assert service.stop() == 0
    version = service.start(service.command).up().wait_for(300)["version"]
    wait(lambda: replica.model(alias)["version"] >= version, "the replica follows by the alias")
    assert service.stop() == 0
    service.config.write_text(service.config.read_text() + "[model]\neta = 2.0\n")
    assert "its last version answers" in command("reset", "-m", topic, "--keep-answering", "--yes")
    assert replica.model(topic)["identity"]["eta"] == 1.0
    service.start(service.command).up()
    wait(lambda: replica.model(topic)["identity"]["eta"] == 2.0, "the model answers again")
