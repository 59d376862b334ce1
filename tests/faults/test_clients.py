"""Clients that never read, send slowly or without end, or only hold connections open, as in docs/security.md.

The trial requests predictions all the time, and each is answered.
"""

import asyncio
import contextlib
import re
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest
from aiokafka import AIOKafkaProducer

from tests.certificates import Certificates
from tests.conftest import Running, event, wait
from tests.faults.trial import Trial

pytestmark = pytest.mark.nightly

PROBES = ("/livez", "/readyz", "/metrics")
POST = "POST /v1/models/{}/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
MIB = 1 << 20


class Endpoint(NamedTuple):
    """The `[http]` settings of a service, and the authority of its certificate, if it has one."""

    settings: str = "[http]\n"
    ca: str | None = None


@pytest.fixture(params=["plain", "tls"])
def endpoint(request: pytest.FixtureRequest, certificates: Certificates) -> Endpoint:
    tls = Endpoint(f'[http]\nssl_certfile = "{certificates.server}"\n', certificates.ca)
    return tls if request.param == "tls" else Endpoint()


class Clients:
    """Connections to a service, closed at the end."""

    def __init__(self, service: Running, ca: str | None = None) -> None:
        self.service = service
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._stack = contextlib.ExitStack()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, text: bytes = b"", buffer: int = 0) -> socket.socket:
        """Connect and send a text; `buffer` is the size of the receive buffer, in bytes."""
        connection = self._stack.enter_context(socket.socket())
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", self.service.port))
        if self._tls:
            connection = self._stack.enter_context(self._tls.wrap_socket(connection, server_hostname="localhost"))
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # the service refused before everything was sent
            connection.sendall(text)
        return connection


def answer(connection: socket.socket, seconds: float = 20) -> str:
    """All bytes until the connection ends, or until nothing arrives for this time."""
    connection.settimeout(seconds)
    received = b""
    with contextlib.suppress(OSError):
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received.decode()


def requests(service: Running, route: str, code: int) -> float:
    """The number of requests to this route that got this status."""
    line = r'perceptron_http_request_duration_seconds_count\{code="%d",method="[A-Z]+",route="/v1/models/\{\w+\}/%s"\}'
    return sum(n for name, n in service.metrics().items() if re.fullmatch(line % (code, route), name))


def ended(service: Running, cause: str) -> float:
    """The number of connections that the service ended for this cause."""
    return service.metrics().get(f'perceptron_http_connections_ended_total{{cause="{cause}"}}', 0.0)


def stop_quietly(service: Running) -> None:
    """Check that SIGTERM ends a service with a few lines of log and without a traceback."""
    assert service.stop() == 0
    log = service.log.read_text()
    assert "Traceback" not in log
    assert log[log.index("stopping") :].count("\n") < 6, log


async def send(trial: Trial, *records: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=trial.kafka.address) as client:
        for record in records:
            await client.send_and_wait(trial.topic, record)


@contextlib.contextmanager
def unharmed(trial: Trial, service: Running, mib: int) -> Iterator[None]:
    """Assert that the service answers other clients meanwhile, and that its memory grows by less than this."""
    memory = psutil.Process(service.process.pid).memory_info
    memory_before, answers_before = memory().rss, len(trial.answers)
    with trial.answering(10):
        yield
        for path in PROBES:
            assert service.http.get(path).status_code == 200
        wait(lambda: len(trial.answers) >= answers_before + 20, "predictions continue")
    assert not trial.failures, trial.failures[:3]
    assert (memory().rss - memory_before) / MIB < mib


def test_readers_that_never_read(trial: Trial, endpoint: Endpoint) -> None:
    """More readers than requests may be in flight: they time out. The service also stops cleanly with them."""
    readers = 150
    limits = f"max_in_flight = {100}\nanswer_timeout = 20.0\n"
    trial.begin(settings=endpoint.settings + limits, ca=endpoint.ca)
    service = trial.live[0]
    asyncio.run(send(trial, *(event({f"{i}-{'wide' * 60}-{j}": 1.0 for j in range(4000)}, 1) for i in range(3))))
    wait(lambda: service.model()["columns"] > 12_000, "answers are large: 3 MB")
    with Clients(service, endpoint.ca) as clients:

        def readers_are_stuck() -> None:
            before, label = requests(service, "weights", 200), "&label=1" if trial.kind == "classes" else ""
            for _ in range(readers):
                request = f"GET /v1/models/{trial.topic}/weights?limit=10000{label} HTTP/1.1\r\nhost: x\r\n\r\n"
                clients.connect(request.encode() * 8, 4096)
            wait(lambda: requests(service, "weights", 200) >= before + readers, "their first answers are on the way")

        with unharmed(trial, service, 150):
            readers_are_stuck()
        wait(lambda: ended(service, "unread") + ended(service, "unread-bytes") == readers, "they have timed out")
        assert ended(service, "unread-bytes") > 0, "their answers exceeded the buffer limit"
        readers_are_stuck()
        trial.hide(service)
        stop_quietly(service)
    assert "Cancel" not in service.log.read_text(), "uvicorn had to give up requests"


def test_bodies_that_do_not_arrive(trial: Trial, endpoint: Endpoint) -> None:
    """They do not count as in flight, and the bytes that are buffered for them have a limit.

    Requests that wait for Redis count as in flight. The service stops cleanly with all of these.
    """
    limits = "max_in_flight = 20\nmax_body_bytes = 1048576\n[snapshots]\nkeep_every = 0.1\n"
    trial.begin(settings=endpoint.settings + limits, ca=endpoint.ca)
    service = trial.live[0]
    post = POST.format(trial.topic) + f"content-length: {MIB}\r\n\r\n"
    with Clients(service, endpoint.ca) as clients:
        for _ in range(200):
            clients.connect(post.encode() + b"{")
        with unharmed(trial, service, 100):
            large = [clients.connect(post.encode() + b" " * 900_000) for _ in range(40)]
            # Bytes of eight largest bodies are buffered, which is nine of these.
            wait(lambda: requests(service, "predict", 503) >= 31, "the others are refused")
            answers = [text for connection in large if (text := answer(connection, 0.1))]
            for response in answers:
                assert response.startswith("HTTP/1.1 503 ")
                assert "retry-after: 1\r\n" in response
                assert "too many bytes of request bodies at a time" in response
            assert len(answers) == 31
        trial.hide(service)
        trial.redis_proxy.hang()
        for _ in range(20):
            clients.connect(f"GET /v1/models/{trial.topic}/versions HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        busy = wait(lambda: (a := service.predict({"features": {}})).status_code == 503 and a, "the limit is reached")
        assert (busy.headers["retry-after"], busy.json()["detail"]) == ("1", "too many requests at a time")
        for path in PROBES:
            assert service.http.get(path).status_code == 200
        stop_quietly(service)


def test_connections_that_are_only_held(trial: Trial, endpoint: Endpoint) -> None:
    """More than the file descriptors: the longest idle ones are closed, and Kafka and Redis can be reached again."""
    trial.begin(settings=endpoint.settings, ca=endpoint.ca)
    service = trial.live[0]
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    with Clients(service, endpoint.ca) as clients, unharmed(trial, service, 64):
        for _ in range(1100):
            clients.connect()
        wait(lambda: ended(service, "too-many") > 100, "the longest idle connections are closed")
        trial.redis_proxy.cut()
        trial.kafka_proxy.cut()
        trial.progress(1000)
        assert psutil.Process(service.process.pid).num_fds() < 1024 - 64
    trial.finish()
