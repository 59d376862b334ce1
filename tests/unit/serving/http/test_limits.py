"""The limits on clients, over a socket: connections, heads, bodies, unread answers, and upgrades."""

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from service.credentials import Tls
from service.learning.identity import Identity
from service.monitoring.metrics import Metrics
from service.serving.http.server import MAX_UNREAD_BYTES, HttpServer
from service.settings.connections import HttpSettings
from tests.certificates import Certificates
from tests.checks import learner_of
from tests.conftest import event, until
from tests.unit.applications import application

PREDICT = "/v1/models/m/predict"
GET, LIVEZ = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
BODY = b'{"features":{"a":2,"never seen":1}}'
JSON = "content-type: application/json\r\n"
HEADERS = [b"cache-control", b"content-length", b"content-type", b"date", b"referrer-policy", b"x-content-type-options"]
TOKEN = "token-0123456789abcd"  # noqa: S105 - only for these tests
WAIT_SECONDS = 100
"""How long a test waits at most for something that takes a fraction of a second."""


class Answer:
    """An answer that was read: its status, headers and body."""

    def __init__(self, head: bytes, body: bytes) -> None:
        line, *headers = head.split(b"\r\n")
        self.status, self.body = int(line.split()[1]), body
        self.headers = dict(header.split(b": ", 1) for header in headers)
        self.names = sorted(header.partition(b":")[0] for header in headers)

    @property
    def detail(self) -> str:
        return str(json.loads(self.body)["detail"])


class Client:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *packets: bytes) -> None:
        """Send, with time for the server to read each packet."""
        for packet in packets:
            self.writer.write(packet)
            await asyncio.sleep(0.02)

    async def answer(self, has_body: bool = True) -> Answer:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_SECONDS))[:-4]
        answer = Answer(head, b"")
        if has_body:
            length = int(answer.headers[b"content-length"])
            answer.body = await asyncio.wait_for(self.reader.readexactly(length), WAIT_SECONDS)
        return answer

    async def read_to_end(self) -> bytes:
        """The bytes that arrive until the connection ends."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), WAIT_SECONDS)
        return b""

    async def is_silent(self) -> bool:
        """Whether nothing comes, and the connection stays."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.reader.read(1), 0.2)
            return False
        return True


class LocalServer:
    """A server over one model of three labels, or over `app`."""

    def __init__(
        self,
        http: HttpSettings = HttpSettings(),  # noqa: B008 - it does not change
        app: Any = None,
    ) -> None:
        self.causes, self.metrics = list[str](), Metrics("0", list, lambda: True, dict)
        learner = learner_of(Identity(labels=("x", "y", "z")), [event({"a": 1}, "y"), event({"a": -1}, "x")])
        self.http, self.learner, self.stopping = http, learner, False
        self.app = app or application(learner, metrics=self.metrics, http=http, stopping=lambda: self.stopping)
        self._stack = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(
        self, tls: ssl.SSLContext | None = None, trust: ssl.SSLContext | None = None
    ) -> AsyncIterator["LocalServer"]:
        server = HttpServer(self.app, self.http, ServerState(), self.causes.append, lambda: self.stopping, tls)
        self.server = server
        self._trust = trust
        async with self._stack:
            listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._address = listener.getsockname()
            task = asyncio.create_task(server.serve(sockets=[listener]))
            yield self
            server.stop()
            await asyncio.wait_for(task, WAIT_SECONDS)

    async def client(self, *packets: bytes, buffer: int = 0) -> Client:
        connection = socket.socket()
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self._address)
        tls_options: Any = {"ssl": self._trust, "server_hostname": "localhost"} if self._trust else {}
        reader, writer = await asyncio.open_connection(
            sock=connection, limit=max(buffer, 1) if buffer else 1 << 16, **tls_options
        )
        self._stack.callback(writer.close)
        client = Client(reader, writer)
        await client.send(*packets)
        return client

    async def ask(self, *packets: bytes) -> Answer:
        return await (await self.client(*packets)).answer()

    async def refusal(self, *packets: bytes) -> Answer:
        """The answer to a request after which the server closes the connection."""
        client = await self.client(*packets)
        answer = await client.answer()
        assert answer.headers[b"connection"] == b"close"
        assert await client.read_to_end() == b""
        return answer

    def request_count(self, code: str = "200") -> float:
        labels = {"route": "/v1/models/{name}/predict", "method": "POST", "code": code}
        return self.metrics.registry.get_sample_value("perceptron_http_request_duration_seconds_count", labels) or 0.0


@pytest.fixture
async def server() -> AsyncIterator[LocalServer]:
    """A server with the default limits."""
    async with LocalServer().running() as running:
        yield running


def post(body: bytes = BODY, query: str = "", headers: str = JSON, path: str = PREDICT) -> bytes:
    address = f"{path}?{query}" if query else path
    return f"POST {address} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*chunks: bytes, headers: str = JSON, trailer: str = "") -> bytes:
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\n{headers}transfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + f"0\r\n{trailer}\r\n".encode()


UPGRADES = {
    "h2c": "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    "websocket": "connection: upgrade\r\nupgrade: websocket\r\n",
    "unknown": "upgrade: a/1, b/2\r\nconnection: keep-alive, upgrade\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
async def test_a_request_with_an_upgrade_keeps_its_body(server: LocalServer, upgrade: str) -> None:
    """The request comes whole, in chunks, cut anywhere, and between other requests. Each request gets one answer."""
    requests = [post(headers=JSON + upgrade), chunked(BODY[:9], BODY[9:], headers=JSON + upgrade)]
    expected = (await server.ask(post())).body
    for request in requests:
        head = request.index(b"\r\n\r\n") + 4
        for cut in (None, 1, 30, head - 3, head - 1, head, head + 1, len(request) - 1):
            packets = [request] if cut is None else [request[:cut], request[cut:]]
            client = await server.client(*packets)
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, expected), cut
            assert await client.is_silent(), cut
            client.writer.close()
    client = await server.client(post() + requests[0] + requests[1] + post() + requests[0])
    for _ in range(5):
        assert (await client.answer()).body == expected
    assert await client.is_silent()
    get = f"GET /livez HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n".encode()
    assert (await server.ask(get)).body == b'{"live":true}'


async def test_a_token_in_a_trailer_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    bearer = f"authorization: Bearer {TOKEN}\r\n"
    async with LocalServer(HttpSettings(token_file=str(tmp_path / "tokens"))).running() as server:
        assert (await server.ask(chunked(BODY, trailer=bearer))).status == 401
        assert (await server.ask(chunked(BODY, headers=JSON + bearer))).status == 200
        assert (await server.ask(post())).status == 401
        assert (await server.ask(post(headers=JSON + bearer))).status == 200
        assert (await server.ask(post(headers=JSON + bearer * 2))).status == 401


@pytest.mark.parametrize("size", [200, 40_000])
async def test_the_limit_of_a_body_holds_on_every_path(size: int) -> None:
    """The limit holds after a good request to the same address too, and for the unpacked size of a gzip body."""
    async with LocalServer(HttpSettings(max_body_bytes=size)).running() as server:
        large, fits = BODY + b" " * size, BODY + b" " * (size - len(BODY))
        packed = JSON + "content-encoding: gzip\r\n"
        for _ in range(2):
            for request in (post(fits), chunked(fits[:100], fits[100:]), post(gzip.compress(fits), headers=packed)):
                assert (await server.ask(request)).status == 200
            for query in ("", "explain=true"):
                for request in (
                    post(large, query), chunked(large[:100], large[100:]), post(gzip.compress(large), query, packed),
                ):  # fmt: skip
                    answer = await server.refusal(request)
                    assert (answer.status, answer.detail) == (413, f"the body is larger than {size} bytes")


@pytest.mark.parametrize("header", ["", "expect: 100-continue\r\n"], ids=["", "waits to be let go on"])
async def test_a_body_that_is_declared_too_large_is_not_waited_for(server: LocalServer, header: str) -> None:
    client = await server.client(
        f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\n{JSON}{header}content-length: 99999999999\r\n\r\n".encode()
    )
    answer = await client.answer()
    assert (answer.status, answer.headers[b"connection"]) == (413, b"close")


async def test_a_client_that_is_refused_can_read_why_while_it_sends(server: LocalServer) -> None:
    """A connection that closes with bytes unread would be reset, and the client would lose the answer."""
    for head in (
        f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 99999999999\r\n\r\n".encode(),
        b"nonsense\r\n",
    ):
        client = await server.client(head)
        answer = asyncio.create_task(client.answer())
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.writer.write(b" " * (64 << 10))
                await client.writer.drain()
        assert (await answer).status in {400, 413}


async def test_a_body_that_is_late_ends_its_connection() -> None:
    async with LocalServer(HttpSettings(body_timeout=0.05)).running() as server:
        answer = await server.refusal(post()[:-5])
        assert (answer.status, answer.detail) == (408, "the body did not arrive within 0.05 seconds")
        assert server.request_count("408") == 1


async def test_the_largest_of_bodies_that_are_too_large_together_gives_way() -> None:
    """A body of up to 64 KiB never gives way, and neither does a body that has arrived."""
    limit = 200_000
    async with LocalServer(HttpSettings(max_body_bytes=limit)).running() as server:
        large = post(BODY + b" " * (limit - len(BODY)))
        clients = [await server.client(large[:-1000]) for _ in range(8)]
        assert (await server.ask(post())).status == 200
        middle = post(BODY + b" " * 100_000)
        answer = await server.ask(middle[:-1000], middle[-1000:])
        assert answer.status == 200
        closed_clients = [client for client in clients if not await client.is_silent()]
        assert len(closed_clients) == 1
        assert server.request_count("503") == 1
        for client in clients:
            if client not in closed_clients:
                client.writer.write(large[-1000:])
                assert (await client.answer()).status == 200


HEAD = f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\n{JSON}transfer-encoding: chunked\r\n\r\n".encode()
WITHOUT_END = {
    "header": (b"GET /livez HTTP/1.1\r\na: ", b"a" * 1024, 431, "headers are larger than 65536 bytes"),
    "headers": (b"GET /livez HTTP/1.1\r\n", b"a: b\r\n", 431, "more than 100 headers"),
    "line": (b"GET /", b"a" * 1024, 431, "headers are larger than 65536 bytes"),
    "trailer": (HEAD + b"1\r\n{\r\n0\r\na: ", b"a" * 1024, 431, "headers are larger than 65536 bytes"),
    "chunk": (HEAD + b"1;a=", b"a" * 1024, 431, "headers are larger than 65536 bytes"),
    "upgrade": (b"GET /livez HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\na: ", b"a" * 1024, 431, "headers are"),
}


@pytest.mark.parametrize("name", WITHOUT_END)
async def test_heads_without_end_are_refused(server: LocalServer, name: str) -> None:
    begin, repeated, status, detail = WITHOUT_END[name]
    client = await server.client(begin)
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            client.writer.write(repeated * (32 * 1024 // len(repeated)))
            await client.writer.drain()
    answer = await client.answer()
    assert (answer.status, answer.headers[b"connection"]) == (status, b"close")
    assert detail in answer.detail
    assert server.causes == ["large-headers"]


@pytest.mark.parametrize("upgrade", ["", UPGRADES["h2c"]])
@pytest.mark.parametrize("previous", [b"", post()])
async def test_heads_that_are_too_large_are_refused_whole(server: LocalServer, previous: bytes, upgrade: str) -> None:
    large = {
        f"GET /{'a' * 70_000} HTTP/1.1\r\n{upgrade}\r\n": 431,
        f"GET / HTTP/1.1\r\n{upgrade}{'a: b' + chr(13) + chr(10)}" + "a: b\r\n" * 100 + "\r\n": 431,
        f"GET / HTTP/1.1\r\n{upgrade}a: {'b' * 70_000}\r\n\r\n": 431,
    }
    for request, status in large.items():
        client = await server.client(previous)
        if previous:
            assert (await client.answer()).status == 200
        await client.send(request.encode())
        assert (await client.answer()).status == status
    fits = f"GET /livez HTTP/1.1\r\nhost: x\r\n{upgrade}a: {'b' * 60_000}\r\n\r\n".encode()
    assert (await server.ask(fits)).status == 200


async def test_a_late_head_is_answered_408_and_a_silent_connection_is_closed() -> None:
    """The time begins with the head, not with the previous answer."""
    async with LocalServer(HttpSettings(header_timeout=1.5)).running() as server:
        slow = await server.client(b"GET /livez HTTP/1.1\r\nhost")
        silent = await server.client()
        reused = await server.client(post())
        await reused.answer()
        await asyncio.sleep(1)
        await reused.send(post()[:20])
        answer = await slow.answer()
        assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
        assert answer.detail == "the request's headers did not arrive within 1.5 seconds"
        assert await silent.read_to_end() == b""
        await reused.send(post()[20:])
        assert (await reused.answer()).status == 200
        assert server.causes == ["slow-headers"]


@pytest.mark.parametrize("blank_line", [b"", b"\r\n"])
async def test_an_idle_connection_stays_open_for_its_time(blank_line: bytes) -> None:
    async with LocalServer(HttpSettings(header_timeout=0.1, idle_timeout=2.5)).running() as server:
        client = await server.client(post())
        for _ in range(2):
            assert (await client.answer()).status == 200
            await asyncio.sleep(1.5)
            await client.send(blank_line, post())
        assert (await client.answer()).status == 200
        await client.send(blank_line)
        assert await client.read_to_end() == b""
        assert not server.causes


async def test_pipelined_requests_have_a_limit(server: LocalServer) -> None:
    """The answer in progress is the last of the connection, and says so."""
    client = await server.client(LIVEZ * 20)
    for _ in range(20):
        assert (await client.answer()).body == b'{"live":true}'
    assert (await server.refusal(LIVEZ * 3000)).body == b'{"live":true}'
    assert server.causes == ["pipelined"]


@pytest.mark.parametrize("packets", [[HEAD + b"zz\r\n"], [HEAD, b"zz\r\n"], [HEAD + b"1\r\n{\r\n", b"zz\r\n"]])
async def test_a_body_in_bad_chunks_is_refused_once(server: LocalServer, packets: list[bytes]) -> None:
    client = await server.client(*packets)
    answer = await client.answer()
    assert (answer.status, answer.headers[b"connection"]) == (400, b"close")
    assert answer.detail == "the body is not a valid chunked body (RFC 9112)"
    await client.send(post())
    assert await client.read_to_end() == b""
    assert (await server.refusal(post() + HEAD + b"zz\r\n")).status == 200, "the previous request"


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.0\r\n", "HTTP/1.0\r\nconnection: keep-alive\r\n", "HTTP/1.1\r\nconnection: close\r\n",
        "HTTP/1.0\r\nconnection: upgrade\r\nupgrade: x\r\n", "HTTP/1.1\r\nconnection: close, upgrade\r\nupgrade: x\r\n",
    ],
)  # fmt: skip
async def test_the_last_answer_of_a_connection_says_so(server: LocalServer, head: str) -> None:
    for request in (f"GET /livez {head}host: x\r\n\r\n".encode(), post().replace(b"HTTP/1.1\r\n", head.encode())):
        assert (await server.refusal(request)).status == 200
    client = await server.client(post())
    assert b"connection" not in (await client.answer()).headers
    server.stopping = True
    for request in (post(), LIVEZ):
        assert (await server.ask(request)).headers[b"connection"] == b"close"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("HTTP/1.1\r\n", 400), ("HTTP/1.1\r\nhost: x\r\nhost: y\r\n", 400), ("HTTP/0.9\r\nhost: x\r\n", 505),
        ("HTTP/2.0\r\nhost: x\r\n", 505),
    ],
)  # fmt: skip
async def test_a_request_of_another_version_or_host_is_refused(server: LocalServer, head: str, status: int) -> None:
    assert (await server.refusal(f"GET /livez {head}\r\n".encode())).status == status


class Gate:
    """An application that answers with `answer` once `open` is set."""

    def __init__(self, answer: bytes = b"ok") -> None:
        self.entered, self.open, self.answer = asyncio.Semaphore(0), asyncio.Event(), answer

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.entered.release()
        await self.open.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(self.answer))]}
        )
        await send({"type": "http.response.body", "body": self.answer})


async def test_a_connection_too_many_replaces_the_longest_idle_one_or_is_refused() -> None:
    gate = Gate()
    async with LocalServer(HttpSettings(max_connections=3), gate).running() as server:
        idle = [await server.client() for _ in range(2)]
        busy = [await server.client(GET)]
        await gate.entered.acquire()
        for client in idle:
            busy.append(await server.client(GET))
            assert await client.read_to_end() == b""
            await gate.entered.acquire()
        answer = await server.refusal()
        assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
        assert answer.detail == "too many connections at a time"
        assert server.causes == ["too-many"] * 3
        gate.open.set()
        for client in busy:
            assert (await client.answer()).body == b"ok"


TlsContexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]
"""The TLS context of the server, and that of its clients."""


@pytest.fixture(params=["plain", pytest.param("tls", marks=pytest.mark.nightly)])
def tls_contexts(request: pytest.FixtureRequest, certificates: Certificates) -> TlsContexts:
    if request.param == "plain":
        return None, None
    tls = Tls(certfile=certificates.server, server=True).context()
    return tls, ssl.create_default_context(cafile=certificates.ca)


async def test_answers_that_nobody_reads_end_with_their_time(tls_contexts: TlsContexts) -> None:
    gate = Gate(b"x" * (8 << 20))
    gate.open.set()
    async with LocalServer(HttpSettings(answer_timeout=1.0), gate).running(*tls_contexts) as server:
        unread = await server.client(GET * 3, buffer=4096)
        client = await server.client(GET)
        assert (await client.answer()).body == gate.answer
        await until(lambda: server.causes == ["unread"], "the unread answers end")
        assert await unread.read_to_end() != gate.answer


async def test_answers_that_nobody_reads_end_if_they_are_too_many(tls_contexts: TlsContexts) -> None:
    size = 16 << 20
    gate = Gate(b"x" * size)
    gate.open.set()
    async with LocalServer(HttpSettings(answer_timeout=WAIT_SECONDS), gate).running(*tls_contexts) as server:
        clients = [await server.client(GET, buffer=4096) for _ in range(MAX_UNREAD_BYTES // size + 4)]
        await until(lambda: len(server.causes) >= 2, "two connections end")
        assert set(server.causes) == {"unread-bytes"}
        assert (await clients[-1].answer()).body == gate.answer, "the newest connection stays"


async def test_every_answer_has_its_headers_once_and_whole(server: LocalServer) -> None:
    """This includes answers without a body, to requests that wait for 100 Continue, and to pipelined requests."""
    client = await server.client(LIVEZ.replace(b"GET", b"HEAD") + LIVEZ + post())
    for has_body in (False, True, True):
        assert (await client.answer(has_body)).names == HEADERS
    request = post(headers=JSON + "expect: 100-continue\r\n")
    await client.send(request[: -len(BODY)])
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(BODY)
    assert (await client.answer()).names == HEADERS
    assert server.server.server_state.total_requests == 4, "the clock that shortens slices counts them"
