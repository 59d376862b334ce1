"""Connections: uvicorn is the one they lean on, and which of them end when they are too many."""

import asyncio
import contextlib
import hashlib
import inspect
import socket
import ssl
from typing import Any

import pytest
from uvicorn.protocols.http import flow_control, httptools_impl

from service.credentials.tls import Tls
from service.serving.connections import MAX_JOINED_BYTES, ConnectionLimits, Connections, _Joined
from service.serving.server import Server
from tests.certificates import Certificates


def test_uvicorn_is_the_one_that_connections_lean_on() -> None:
    """If not: read what changed in these two files, see that tests/faults/test_clients.py passes, put in the digest."""
    text = inspect.getsource(httptools_impl) + inspect.getsource(flow_control)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ea814cf42e50628d"


async def test_one_more_ends_an_idle_one_then_one_that_is_waited_for_and_is_refused_where_all_are_answered() -> None:
    begun, gate, causes = asyncio.Semaphore(0), asyncio.Event(), list[str]()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        begun.release()
        await gate.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = Server(app, Connections(ConnectionLimits(connections=2), causes.append, lambda: 0), 2)
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        serving = asyncio.create_task(server.serve(sockets=[listening]))

        async def client(text: bytes = b"") -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            stack.callback(writer.close)
            writer.write(text)
            return reader

        slow = await client(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n{")
        idle = await client()
        first = await client(b"GET / HTTP/1.1\r\n\r\n")
        assert await idle.read() == b""
        await begun.acquire()
        second = await client(b"GET / HTTP/1.1\r\n\r\n")
        assert await slow.read() == b""
        for _ in range(2):  # the slow one's, which is gone, and this one's
            await begun.acquire()
        said = await (await client()).read()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections at a time" in said
        assert causes == ["too-many"] * 3
        gate.set()
        for asked in (first, second):
            assert (await asked.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
        server.should_exit = True
        await serving


class _Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.write = self.writes.append
        self.is_closing = bool
        self.closed = False

    def close(self) -> None:
        self.closed = True


HEAD = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
WITH_OURS = b"HTTP/1.1 200 OK\r\na: b\r\nours: 1\r\n\r\n"
LARGE = b"x" * (MAX_JOINED_BYTES + 1)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ([HEAD, b"body"], [WITH_OURS + b"body"]),
        ([HEAD, b""], [WITH_OURS]),
        ([HEAD, b"first", b"second"], [WITH_OURS + b"first", b"second"]),
        ([HEAD, LARGE, b"more"], [WITH_OURS, LARGE, b"more"]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", HEAD, b"x"], [b"HTTP/1.1 100 Continue\r\n\r\n", WITH_OURS + b"x"]),
        ([HEAD], [WITH_OURS]),
    ],
    ids=["one", "none", "several", "large", "continue", "cut off"],
)
def test_the_head_of_an_answer_goes_with_the_first_of_its_body(given: list[bytes], written: list[bytes]) -> None:
    transport = _Written()
    joined = _Joined(transport, b"ours: 1\r\n", transport.close)
    for data in given:
        joined.write(data)
    joined.close()
    assert transport.writes == written
    assert transport.closed


async def test_every_answer_has_its_headers_once_and_whole() -> None:
    """Also those without a body, those of a request that waits to be let go on, and those behind one another."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = Server(app, Connections(ConnectionLimits(), lambda _: None, lambda: 0), 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        writer.write(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n")
        for end in (b"\r\n\r\n", b"\r\n\r\nok", b"Continue\r\n\r\n", b"\r\n\r\nok"):
            said = await asyncio.wait_for(reader.readuntil(end), 10)
            if b"Continue" in end:
                writer.write(b"x")
                continue
            lines = said.split(b"\r\n\r\n")[0].split(b"\r\n")
            names = sorted(line.partition(b":")[0] for line in lines[1:])
            assert lines[0] == b"HTTP/1.1 200 OK"
            assert names == [
                b"cache-control",
                b"content-length",
                b"date",
                b"referrer-policy",
                b"x-content-type-options",
            ]
        writer.close()
        server.should_exit = True
        await serving


async def test_under_tls_a_connection_counts_from_its_beginning(certificates: Certificates) -> None:
    """Those whose handshake is not over are idle, and end for one more; large answers arrive whole, each way."""
    causes, large = list[str](), b"x" * (3 << 20)

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        answer = body + message["body"] + large
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    tls = Tls(certfile=certificates.server, server=True).context()
    server = Server(app, Connections(ConnectionLimits(connections=3), causes.append, lambda: 0), 2, tls)
    trust = ssl.create_default_context(cafile=certificates.ca)
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        serving, address = asyncio.create_task(server.serve(sockets=[listening])), listening.getsockname()
        held = [await asyncio.open_connection(*address) for _ in range(5)]
        assert [await reader.read() for reader, _ in held[:2]] == [b"", b""]
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*address, ssl=trust, server_hostname="localhost")
            writer.write(b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(large) + large)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.read() == large + large
            writer.close()
        assert causes[:2] == ["too-many"] * 2
        assert set(causes) == {"too-many"}
        server.should_exit = True
        await serving
        for _, writer in held:
            writer.close()
