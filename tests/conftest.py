"""Real servers for the tests: one Kafka and each available Redis per session, and the service as a process."""

import asyncio
import contextlib
import gc
import inspect
import io
import itertools
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx
import hypothesis
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from service.cli.app import main
from service.embedded import servers
from service.embedded.servers import PROPERTIES, Server, free_port
from service.streaming.dead_letters import dead_letter_topic
from tests import template
from tests.faults.proxy import KafkaProxy
from tests.template import Copy, Done, pause

if TYPE_CHECKING:
    from tests.certificates import Certificates

# `jsonschema` would compile forty grammars with it, 4 s in each worker, for formats that no test uses.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] # importing it raises

DEADLINE = 120.0
SESSION_SECONDS, TAKEOVER_SECONDS, HELD_SECONDS = 6.0, 1.5, 30.0
"""Session timeouts: the default, a shorter one for tests that wait for a takeover, and a longer one for tests
whose learner must keep its topic, however slow the machine is."""

# On a shared machine, the time of an example shows nothing about the program.
hypothesis.settings.register_profile(
    "here", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("here")
WAITING = ("browser", "contract", "faults", "integration")
"""Folders of tests with servers."""


class Loop(asyncio.SelectorEventLoop):
    """Waits for its connections before it closes: over TLS the server closes too, and not all clients wait for it."""

    def close(self) -> None:
        deadline = self.time() + DEADLINE
        while self._open() and self.time() < deadline:
            self.run_until_complete(asyncio.sleep(0.01))
        super().close()

    def _open(self) -> bool:
        return any(transport._sock is not None for transport in self._transports.values())  # type: ignore[attr-defined]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test in a `Loop`."""
    return {"loop": Loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests: long ones, then tests with servers, then tests that only compute; the same number per worker.

    pytest-xdist gives each worker a part of the list, and the tests at the end are short and wait for no server.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size, ordered = -(-len(items) // workers), list[pytest.Item]()
    long_tests = [item for item in items if item.get_closest_marker("long")]
    other_tests = [item for item in items if not item.get_closest_marker("long")]
    server_tests = [item for item in other_tests if item.path.parent.name in WAITING]
    computing_tests = (item for item in other_tests if item.path.parent.name not in WAITING)
    share = -(-len(server_tests) // workers)
    for worker in range(workers):
        worker_items = [*long_tests[worker::workers], *server_tests[worker * share : (worker + 1) * share]]
        ordered += [*worker_items, *itertools.islice(computing_tests, max(0, size - len(worker_items)))]
    items[:] = ordered


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection, which would take a third of the time, and freeze the objects afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


SHARED = pytest.StashKey[tuple[contextlib.ExitStack, dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker use the controller's resources."""
    if resources := getattr(config, "workerinput", None):
        template.shared = Path(resources["templates"])
        os.environ.update(resources["environment"])


def pytest_configure_node(node: Any) -> None:
    """Start, in pytest-xdist's controller, the broker and the templates that all workers share."""
    stash = node.config.stash
    if SHARED not in stash:
        stack = contextlib.ExitStack()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers.jars()  # two concurrent downloads of the same file fail
        with ThreadPoolExecutor(4) as threads:
            class_archive = threads.submit(_build_class_archive, folder / "remembered")
            # In a fresh clone all workers and their processes would otherwise compile the same code at once.
            templates = map(template.start_template, template.KINDS, itertools.repeat(folder))
            futures = [threads.submit(stack.enter_context, started) for started in templates]
            collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0", *node.config.args]
            threads.submit(subprocess.run, collect, stdout=subprocess.DEVNULL, check=False)
            server = stack.enter_context(servers.start_kafka(folder))
        for future in futures:
            future.result()
        kafka = server.port, str(server.log)
        stash[SHARED] = stack, {"kafka": kafka, "templates": str(folder), "environment": class_archive.result()}
    node.workerinput.update(stash[SHARED][1])


def _build_class_archive(folder: Path) -> dict[str, str]:
    """Build a Java class archive, which halves the start time of brokers; returns the variables that use it."""
    folder.mkdir()
    archive, cache = folder / "written", folder / "cache"
    with servers.start_kafka(folder, flags=[f"-XX:AOTCacheOutput={archive}"]) as server:
        pass
    if server.process and server.process.returncode == 128 + signal.SIGTERM:  # else it was killed while it wrote
        archive.rename(cache)
        return {"JDK_JAVA_OPTIONS": f"-XX:AOTCache={cache}"}
    return {}


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        config.stash[SHARED][0].close()


@pytest.fixture(scope="session")
def kafka_proxy() -> Iterator[KafkaProxy]:
    with KafkaProxy() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def own_kafka(tmp_path_factory: pytest.TempPathFactory, kafka_proxy: KafkaProxy) -> Iterator[Server]:
    """A broker for tests that stop it. Its second listener is advertised at the proxy, so clients cannot bypass it."""
    kafka_proxy.upstream = free_port()
    properties = (
        PROPERTIES.replace("listeners=PLAINTEXT://127.0.0.1:{port},", f"listeners=PLAINTEXT://127.0.0.1:{{port}},"
                           f"PROXIED://127.0.0.1:{kafka_proxy.upstream},", 1)
        .replace("advertised.listeners=PLAINTEXT://127.0.0.1:{port}", "advertised.listeners=PLAINTEXT://127.0.0.1:"
                 f"{{port}},PROXIED://{kafka_proxy.address}")
        .replace("PLAINTEXT:PLAINTEXT", "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT")
    )  # fmt: skip
    with servers.start_kafka(tmp_path_factory.mktemp("kafka"), properties=properties) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Server:
    """The broker that workers share; without workers, this session's own broker."""
    if shared := getattr(request.config, "workerinput", {}).get("kafka"):
        port, log = shared
        return Server([], port, Path(log))
    server: Server = request.getfixturevalue("own_kafka")
    return server


both_stores = pytest.mark.parametrize("redis", ["valkey", "redis-server"], indirect=True)
"""For tests of the store: they run on Valkey from its wheel, and on Redis itself, since most users have that."""


def program(name: str) -> str:
    """The path of a program that is not a Python package; skips the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        assert not os.environ.get("CI"), f"CI must have {name}"
        pytest.skip(f"no {name} on PATH")
    return path


@contextlib.contextmanager
def hanging(server: Server) -> Iterator[None]:
    """SIGSTOP: meanwhile the server accepts connections and does not answer."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(name: str, folder: Path) -> Iterator[Server]:
    """`valkey` from its wheel, or `redis-server` if it is installed."""
    with servers.start_redis(folder, program(name) if name == "redis-server" else None) as server:
        yield server


@pytest.fixture(scope="session")
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Valkey, or with `both_stores` each of the two."""
    with redis_server(getattr(request, "param", "valkey"), tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """Two certificate authorities and the certificates that they signed."""
    from tests.certificates import make  # imported here: few tests need it, and it loads a library

    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def topic() -> str:
    """A topic name that only this test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


def wait(condition: Callable[[], Any], description: str, seconds: float = DEADLINE) -> Any:
    """Wait until the condition holds, and return what it returned."""
    started = time.monotonic()
    while True:
        if value := condition():
            return value
        assert time.monotonic() - started < seconds, f"not within {seconds} s: {description}"
        time.sleep(pause(started))


async def until(condition: Callable[[], Any], description: str, seconds: float = DEADLINE) -> Any:
    """`wait` in the event loop; the condition may be a coroutine function."""
    started = time.monotonic()
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() - started < seconds, f"not within {seconds} s: {description}"
        await asyncio.sleep(0.01)


class Running:
    """`perceptron run` as a process, and an HTTP client for it."""

    def __init__(
        self,
        topic: str,
        kafka: str,
        redis: str,
        folder: Path,
        settings: str,
        *flags: str,
        topics: Iterable[str] = (),
        watchdog: float = 60.0,
        session_timeout: float = SESSION_SECONDS,
        program: Sequence[str] = ("service",),
        ca: str | None = None,
    ) -> None:
        self.topic = topic
        self.redis_url = f"redis://{redis}/0"
        self.port = servers.free_port()
        self.config = folder / f"settings-{self.port}.toml"
        kafka_settings = f"kafka.session_timeout = {session_timeout}\nkafka.watchdog = {watchdog}\n"
        self.config.write_text(f"{kafka_settings}{settings}\n")
        command = [sys.executable, "-m", *program, "-c", str(self.config), "run", "-g", f"g-{topic}"]
        command += ["-t", topic] if topic else []
        command += [flag for name in topics for flag in ("-t", name)]
        self.command = [*command, "-b", kafka, "--redis", self.redis_url, "-p", str(self.port), *flags]
        self.log = folder / f"service-{self.port}.log"
        # If the settings have a certificate, the client trusts its issuer.
        trust = ssl.create_default_context(cafile=ca) if ca else True
        self.http = httpx.Client(base_url=f"http{'s' if ca else ''}://127.0.0.1:{self.port}", timeout=60, verify=trust)
        self.start(self.command)

    def start(self, command: list[str]) -> "Running":
        """Start the process, or a new one in place of the last."""
        self.process: Copy | subprocess.Popen[bytes]
        self.log.touch()
        if command[:2] == [sys.executable, "-m"]:
            self.process = Copy(command[2:], clean_environment(), self.log)
        else:
            with self.log.open("ab") as out:
                self.process = subprocess.Popen(command, stdout=out, stderr=out, env=clean_environment())
        return self

    def up(self) -> "Running":
        """Wait until it is ready."""
        wait(self._ready, "the service is ready")
        return self

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.is_ok("/readyz")

    def is_ok(self, path: str) -> bool:
        """Whether it listens, and answers this path with 200."""
        with contextlib.suppress(httpx.TransportError):
            return self.http.get(path).status_code == 200
        return False

    def model(self, topic: str = "") -> Any:
        return self.http.get(f"/v1/models/{topic or self.topic}").raise_for_status().json()

    def weights(self, label: int | None = None) -> Any:
        """All pages of the weights, as one answer; for a model of classes, those of a label."""
        rows, cursor, answer, label_query = [], "1", {"bias": 0.0}, "" if label is None else f"&label={label}"
        while cursor:
            url = f"/v1/models/{self.topic}/weights?limit=5000&cursor={cursor}{label_query}"
            answer = self.http.get(url).raise_for_status().json()
            rows += answer["weights"]
            cursor = answer["next"]
        return {"bias": answer["bias"], "weights": rows}

    def vector(self, label: int | None = None) -> list[float]:
        weights = self.weights(label)
        return [weights["bias"], *(row["weight"] for row in weights["weights"])]

    def predict(self, body: Any) -> httpx.Response:
        return self.http.post(f"/v1/models/{self.topic}/predict", json=body)

    def wait_for(self, records: int) -> Any:
        """Wait until this many records of partition 0 are learned and saved; return the model."""

        def model_if_saved() -> Any:
            try:
                model = self.model()
            except httpx.ConnectError:
                self.process.wait(DEADLINE)
                raise AssertionError(self.log.read_text()) from None
            return model if model["next"]["0"] == records and model["ahead"] == 0 else None

        return wait(model_if_saved, f"{records} records learned")

    def metrics(self) -> dict[str, float]:
        """Every sample, by its name and labels as the exposition format writes them."""
        lines = self.http.get("/metrics").raise_for_status().text.splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}

    def rewinds(self) -> float:
        """How often it dropped its state, for any reason."""
        return sum(n for name, n in self.metrics().items() if name.startswith("perceptron_rewinds_total"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, seconds: float = DEADLINE) -> int:
        """Signal it and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        """Close the client, and kill the process if it still runs."""
        self.http.close()
        if self.process.poll() is None:
            self.kill()


Run = Callable[..., Running]


@pytest.fixture
def run(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> Iterator[Run]:
    """Start services on this test's topic; the end of the test kills those that still run."""
    started: list[Running] = []

    def start(
        settings: str = "",
        *flags: str,
        topic: str = topic,
        redis_address: str = redis.address,
        kafka_address: str = kafka.address,
        create: bool = True,
        session_timeout: float = SESSION_SECONDS,
    ) -> Running:
        flags = (*flags, "--create-topics") if create else flags
        service = Running(
            topic, kafka_address, redis_address, tmp_path, settings, *flags, session_timeout=session_timeout
        )
        started.append(service)
        return service

    yield start
    for service in started:
        service.close()


@pytest.fixture
async def producer(kafka: Server) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.address, acks="all", enable_idempotence=True, linger_ms=2, max_request_size=4 << 20
    ) as client:
        yield client


@pytest.fixture
async def plain_producer(kafka: Server) -> AsyncIterator[AIOKafkaProducer]:
    """A producer that is not idempotent: the broker does not count its batches, so a test may build some by hand."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
        yield client


async def send(producer: AIOKafkaProducer, topic: str, values: Iterable[bytes], **options: Any) -> None:
    """Send these records, and wait until the broker has them."""
    for value in values:
        await producer.send(topic, value, **options)
    await producer.flush()


@contextlib.contextmanager
def in_threads(*functions: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run functions in threads meanwhile; each gets the event that tells it to stop. Raises what they raise."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(functions)) as threads:
        futures = [threads.submit(function, stop) for function in functions]
        try:
            yield
        finally:
            stop.set()
    for future in futures:
        future.result()


def one_line(text: str) -> str:
    """The only line of an error output."""
    assert "Traceback" not in text
    assert text.count("\n") == 1, text
    return text


@contextlib.asynccontextmanager
async def admin(kafka: Server) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create_topic(kafka: Server, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic with these settings (underscores for dots) and wait until it is listed."""
    names = {name.replace("_", "."): value for name, value in configs.items()}
    async with admin(kafka) as client:
        answer = await client.create_topics([NewTopic(topic, partitions, 1, topic_configs=names)])
        assert answer.topic_errors[0][1] == 0, answer
        # The controller has answered, but the broker of the clients may not list the topic yet.
        await _listed(client, topic, True)


async def create_both_topics(kafka: Server, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic with these settings, and its dead-letter topic."""
    await create_topic(kafka, topic, partitions, **configs)
    await create_topic(kafka, dead_letter_topic(topic))


async def delete_topic(kafka: Server, topic: str) -> None:
    """Delete a topic and wait until it is no longer listed."""
    async with admin(kafka) as client:
        await client.delete_topics([topic])
        await _listed(client, topic, False)


async def _listed(client: AIOKafkaAdminClient, topic: str, expected: bool) -> None:
    deadline = time.monotonic() + DEADLINE
    while (topic in await client.list_topics()) is not expected:
        assert time.monotonic() < deadline


async def trim(kafka: Server, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before an offset."""
    async with admin(kafka) as client:
        await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})


async def add_partitions(kafka: Server, topic: str, total: int) -> None:
    async with admin(kafka) as client:
        await client.create_partitions({topic: NewPartitions(total)})


async def configure(kafka: Server, topic: str, **configs: object) -> None:
    """Set these settings of a topic (underscores for dots), and reset all others."""
    names = {name.replace("_", "."): str(value) for name, value in configs.items()}
    async with admin(kafka) as client:
        [answer] = await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, names)])
        assert answer.resources[0][0] == 0, answer


async def read_partition(kafka: Server, topic: str, number: int = 0, **options: Any) -> tuple[int, int, list[Any]]:
    """First and next offset of a partition of a topic, and its records; `options` are further ones of the consumer."""
    partition, records = TopicPartition(topic, number), list[Any]()
    async with (
        AIOKafkaConsumer(bootstrap_servers=kafka.address, auto_offset_reset="earliest", **options) as consumer,
        asyncio.timeout(DEADLINE),
    ):
        consumer.assign([partition])
        begin = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            records += (await consumer.getmany(partition, timeout_ms=200)).get(partition, [])
    return begin, end, records


async def read_all(kafka: Server, topic: str, number: int = 0) -> list[Any]:
    """Every record of a partition of a topic."""
    return (await read_partition(kafka, topic, number))[2]


def clean_environment(**additions: str) -> dict[str, str]:
    """The environment without the settings of the user who runs the tests."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PERCEPTRON_")} | additions


def perceptron(
    *arguments: str,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    seconds: float = DEADLINE,
) -> Done:
    """Run a command to its end, with `env` added to the clean environment.

    It runs in this process, which takes a tenth of the time. A command that reads its input or takes signals runs in a
    copy of the template, and one that imports from another path in a new interpreter.
    """
    environment = clean_environment(**(env or {}))
    if "PYTHONPATH" in (env or {}):
        result = subprocess.run(
            [sys.executable, "-m", "service", *arguments],
            input=(stdin or b"").decode(), capture_output=True, text=True, cwd=cwd, env=environment, timeout=seconds,
            check=False,
        )  # fmt: skip
        return Done(result.returncode, result.stdout, result.stderr)
    if stdin is not None or {"run", "demo"} & set(arguments):
        return template.run(["service", *arguments], environment, cwd, stdin or b"", seconds)
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop
        return thread.submit(_run_in_this_process, arguments, cwd or Path.cwd(), environment).result(seconds)


_STREAMS_LOCK = threading.Lock()


def _run_in_this_process(arguments: Sequence[str], cwd: Path, environment: dict[str, str]) -> Done:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    with (
        _STREAMS_LOCK,
        mock.patch("asyncio.events.new_event_loop", Loop),  # unlike a process, a thread may leave connections open
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["perceptron", *arguments]),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = 1
            traceback.print_exc()
    return Done(code or 0, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def event(features: Any, label: Any, **members: Any) -> bytes:
    return json.dumps({"features": features, "label": label, **members}, separators=(",", ":")).encode()
