"""Connections: uvicorn is the one they lean on, and which of them end when they are too many."""

import asyncio
import contextlib
import hashlib
import inspect
import socket
import ssl
from typing import Any

from uvicorn.protocols.http import flow_control, httptools_impl

from service.credentials.tls import Tls
from service.serving.connections import ConnectionLimits, Connections, Server
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
