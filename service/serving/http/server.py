"""The server: uvicorn with our connections, and a stop that takes a limited time."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from service.serving.http.limits import Connection, Connections

HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")]
"""Headers of every answer."""
TLS_HEADERS = [("strict-transport-security", "max-age=31536000")]


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, with which it would end before the last save."""

    def __init__(self, app: ASGIApp, connections: Connections, stop_seconds: int, tls: ssl.SSLContext | None) -> None:
        """A stop takes at most `stop_seconds`. With `tls` the server accepts only TLS."""
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
                interface="asgi3",
                headers=HEADERS + (TLS_HEADERS if tls else []),
                ssl_context_factory=(lambda *_: tls) if tls else None,
                timeout_graceful_shutdown=stop_seconds,
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,  # nothing depends on the client's address or scheme
            )
        )
        self._connections, self._stop_seconds, self._stopping = connections, stop_seconds, asyncio.Event()
        self.server_state = connections.requests

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with a time limit on TLS handshakes."""
        loop, config = asyncio.get_running_loop(), self.config
        protocol = partial(Connection, self._connections, config=config, server_state=self.server_state, app_state={})
        seconds = self._connections.limits.header_timeout if config.ssl else None
        listen = partial(loop.create_server, protocol, ssl=config.ssl, backlog=config.backlog)
        self.servers = [await listen(sock=each, ssl_handshake_timeout=seconds) for each in sockets or []]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel requests after three quarters of `stop_seconds`, and end all connections at nine tenths of it."""
        loop, seconds = asyncio.get_running_loop(), self._stop_seconds
        for share in (0.75, 0.8, 0.85):  # the Redis client can take the first cancellation for its own
            loop.call_later(share * seconds, self._cancel)
        loop.call_later(0.9 * seconds, self._abort, self._connections.open)
        await super().shutdown(sockets)

    def _cancel(self) -> None:
        self._abort(connection for connection in self._connections.open if connection.unread_bytes)
        for task in self.server_state.tasks:
            task.cancel()

    def _abort(self, connections: Iterable[Connection]) -> None:
        for connection in list(connections):
            connection.transport.abort()

    async def main_loop(self) -> None:
        """Check once a second how long connections have waited, until `stop`. uvicorn wakes up ten times a second."""
        while not await self.on_tick(0):
            for connection in list(self._connections.open):
                connection.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    def stop(self) -> None:
        """Answer the requests in flight, and end."""
        self.should_exit = True
        self._stopping.set()

    capture_signals = contextlib.nullcontext  # type: ignore[assignment]
    """Signals are left to the process."""
