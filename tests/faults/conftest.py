"""A Kafka that services reach through a proxy, and a Redis for each trial behind another proxy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded import servers
from service.embedded.servers import Server
from tests.faults.proxy import KafkaProxy, Proxy
from tests.faults.trial import ALL, Trial


def repeated(all_repetitions: int, usual_repetitions: int) -> int:
    """The number of repetitions of a fault: `often` with `make test-all`, otherwise `few`."""
    return all_repetitions if ALL else usual_repetitions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `make test-all`, run tests with short time limits first, and give every test two hours."""
    if ALL:
        items.sort(key=lambda item: max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))
        for item in items:
            item.add_marker(pytest.mark.timeout(7200), append=False)


@pytest.fixture(scope="session")
def kafka(own_kafka: Server) -> Server:
    """A broker that only this worker uses, since trials stop it."""
    return own_kafka


@pytest.fixture
def proxy(kafka_proxy: KafkaProxy) -> Iterator[KafkaProxy]:
    """The proxy to Kafka, without its faults once the test has ended."""
    yield kafka_proxy
    kafka_proxy.heal()


@pytest.fixture
def trial(
    request: pytest.FixtureRequest, kafka: Server, kafka_proxy: KafkaProxy, topic: str, tmp_path: Path
) -> Iterator[Trial]:
    """A trial on Redis, or with the parameter "valkey" on Valkey."""
    binary = None if getattr(request, "param", "") == "valkey" else shutil.which("redis-server")
    folder = tmp_path / "redis"
    folder.mkdir()
    with (
        servers.start_redis(folder, binary) as redis,
        Proxy(redis.port) as redis_proxy,
        Trial(kafka, kafka_proxy, redis, redis_proxy, topic, tmp_path) as trial,
    ):
        yield trial
