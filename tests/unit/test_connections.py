"""Connections: uvicorn is the one they lean on, and which of them end when they are too many."""

import asyncio
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


async def test_one_more_is_refused_only_where_all_are_being_answered() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        begun.set()
        await gate.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    causes: list[str] = []
    server = Server(app, Connections(ConnectionLimits(connections=1), causes.append, lambda: 0), 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        idle, first = await asyncio.open_connection("127.0.0.1", port)
        asked, asking = await asyncio.open_connection("127.0.0.1", port)
        assert await idle.read() == b"", "it made room"
        asking.write(b"GET / HTTP/1.1\r\n\r\n")
        await begun.wait()
        refused, third = await asyncio.open_connection("127.0.0.1", port)
        said = await refused.read()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections at a time" in said
        gate.set()
        assert (await asked.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
        assert causes == ["too-many"] * 2
        for writer in (first, asking, third):
            writer.close()
        server.should_exit = True
        await serving
