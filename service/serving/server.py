"""The server: uvicorn, with our connections and our end."""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from service.serving.connections import Connection, Connections
from service.serving.encrypted import Encrypted

HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
]
"""Of every answer."""
TLS_HEADERS = [("strict-transport-security", "max-age=31536000")]


class Server(uvicorn.Server):
    """uvicorn with these connections, and without its signal handlers: it would end before the last save."""

    def __init__(
        self, app: ASGIApp, connections: Connections, stop_seconds: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """`stop_seconds` are for requests in flight, after `should_exit`. With `tls` it speaks nothing else."""
        plain = functools.partial(Connection, connections)
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
                http=cast(Any, plain if tls is None else lambda **of_uvicorn: Encrypted(plain(**of_uvicorn), tls)),
                headers=HEADERS + (TLS_HEADERS if tls else []),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,  # of who asks and by which scheme nothing is made
                timeout_graceful_shutdown=stop_seconds,
            )
        )
        self._connections, self._stop_seconds = connections, stop_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests under way have their time, then clients have theirs, and uvicorn is left nothing to cut off."""
        loop = asyncio.get_running_loop()
        for share in (0.75, 0.8, 0.85):  # Redis' client can take the first cancellation for its own
            loop.call_later(share * self._stop_seconds, lambda: [task.cancel() for task in self.server_state.tasks])
        loop.call_later(0.9 * self._stop_seconds, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield
