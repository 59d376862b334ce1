"""Connections: uvicorn is the one they lean on, and which of them end when they are too many."""

import asyncio
import contextlib
import hashlib
import inspect
import socket
from typing import Any

from uvicorn.protocols.http import flow_control, httptools_impl

from service.serving.connections import ConnectionLimits, Connections, Server


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
