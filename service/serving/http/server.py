"""The server: uvicorn with limits on slow or hostile clients, and a stop that takes a limited time.

The limits are on connections, heads of requests, and answers that nobody reads; `endpoint.InFlight` limits bodies.
`Connection` is uvicorn's protocol with guards around its public methods. It also ignores upgrades: httptools takes any
`Upgrade` for the end of HTTP, so a POST would lose its body, which would then be read as the next request.
"""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, cast

import httptools
import uvicorn
from starlette.types import ASGIApp, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.serving.http import problems
from service.settings.connections import HttpSettings

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
MAX_PIPELINED = 32
"""Requests of one connection that wait for the answer to an earlier request."""
MAX_UNREAD_BYTES = 32 << 20
"""Unread bytes of the answers of all connections together."""
PIECE_BYTES = 64 << 10
"""Bytes of an answer that a transport gets at a time, so that TLS does not buffer an answer that nobody reads."""
LINGER_SECONDS = 1.0
"""Time for a client to read why it is refused. Its further bytes are dropped."""
WHOLE = "perceptron.whole"
"""The key in a request's state that says that its whole body has arrived."""
NO_REQUEST = "no-request", 400, "this is not an HTTP request"
STOP_SECONDS = 2
"""Time for requests in flight when the server stops."""
HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")]
"""Headers of every answer."""
TLS_HEADERS = [("strict-transport-security", "max-age=31536000")]


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which ends if its client takes too much or too long."""

    def __init__(self, http_server: "HttpServer", **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._http_server = http_server
        self.unanswered = deque[RequestResponseCycle]()
        """Requests without a whole answer: the first one is being answered. Empty if the connection is idle."""
        answer = cast(Any, self.app)
        self.app = lambda scope, receive, _: answer(scope, receive, self._sender(self.unanswered[0]))
        self.since = self.loop.time()
        """When the connection became idle, the head of a request began, or the client stopped reading."""
        self._received = 0  # bytes since a request began or ended, or since the last part of its body
        self._unsent_bytes = 0  # of the answer, without those that the transport has
        self._ending = False
        self._fault = NO_REQUEST

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that wait, if the client has stopped reading; otherwise 0."""
        return self._unsent_bytes + self.transport.get_write_buffer_size() if self.flow.write_paused else 0

    def end(self, cause: str) -> None:
        """End the connection now."""
        self._http_server.count_end(cause)
        self._http_server.open.discard(self)
        self.transport.abort()

    def refuse(self, cause: str, status: int, detail: str) -> None:
        """Stop reading. The client gets a problem, or the answer that is under way, and the connection ends."""
        self._http_server.count_end(cause)
        self._ending = True
        self.pipeline.clear()
        current = self.unanswered[0] if self.unanswered else None
        if current and not (current.more_body and not current.response_started):
            current.keep_alive = False
            return
        problem = problems.response(status, detail, headers={"connection": "close"})
        self._write(status, problem.raw_headers, bytes(problem.body))
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
        if current:  # the application stops waiting for the rest of the body
            current.disconnected = True
            current.message_event.set()

    def check(self) -> None:
        """End the connection if it has waited too long for its client."""
        waited, limits = self.loop.time() - self.since, self._http_server.limits
        if self.flow.write_paused or self.transport.is_closing():
            if waited > limits.answer_timeout:
                self.end("unread")
        elif self.unanswered or self._ending:
            return
        elif self._in_head:
            if waited > limits.header_timeout:
                detail = f"the request's headers did not arrive within {limits.header_timeout:g} seconds"
                self.refuse("slow-headers", 408, detail)
        elif waited > (limits.idle_timeout if self.cycle else limits.header_timeout):
            self.transport.close()

    def _write(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        lines = [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *headers)]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))

    def _sender(self, cycle: RequestResponseCycle) -> Send:
        """A `send` for `cycle` that writes head and body of a small answer at once, and a large body in pieces.

        uvicorn writes the head and the body separately, which costs a small answer a fifth of its time. TLS buffers
        whatever it gets, even if the client does not read.
        """
        held = list[Any]()  # the head, until the first part of the body comes

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                return held.append(message)
            body, more = message.get("body", b""), message.get("more_body", False)
            if held:
                head = held.pop()
                cycle.keep_alive &= not self._http_server.stopping()
                headers = head["headers"]
                is_small = len(body) <= PIECE_BYTES and headers and headers[0][0] == b"content-length"
                by_uvicorn = more or cycle.disconnected or self.flow.write_paused or cycle.scope["method"] == "HEAD"
                if is_small and cycle.keep_alive and not by_uvicorn:
                    cycle.response_started = cycle.response_complete = True
                    self._write(head["status"], headers, body)
                    cycle.message_event.set()
                    return cycle.on_response()
                self._unsent_bytes = len(body)
                if self.flow.write_paused:  # the client has not read the answer before this one
                    self._http_server.limit_unread()
                await cycle.send(head)
            for end in range(PIECE_BYTES, len(body) + PIECE_BYTES, PIECE_BYTES) or [0]:
                self._unsent_bytes = max(len(body) - end, 0)
                piece = {**message, "body": body[end - PIECE_BYTES : end], "more_body": more or self._unsent_bytes > 0}
                await cycle.send(cast(Any, piece))

        return send

    @property
    def _in_head(self) -> bool:
        return self.scope is not None and (self.cycle is None or self.scope is not self.cycle.scope)

    def _fail(self, cause: str, status: int, detail: str) -> NoReturn:
        """Stop parsing: `data_received` refuses the request for this reason."""
        self._fault = cause, status, detail
        raise httptools.HttpParserError

    def _check_head(self, size: int) -> None:
        """Raise httptools.HttpParserError for a large head, trailer or chunk extension, or for too many requests."""
        if len(self.headers) > MAX_HEADERS:
            self._fail("large-headers", 431, f"the request has more than {MAX_HEADERS} headers")
        elif size > MAX_HEAD_BYTES:
            self._fail("large-headers", 431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes")
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._fail("pipelined", 503, "too many requests at a time on this connection")

    def _head_without_upgrade(self) -> bytes:
        """The head of the newest request, without its `Upgrade`."""
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = (b"%b: %b" % header for header in self.headers if header[0] != b"upgrade")
        return b"\r\n".join([line, *headers, b"\r\n"])

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        transport.set_write_buffer_limits(PIECE_BYTES)  # under TLS it is more by default
        super().connection_made(transport)
        self._http_server.make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        for cycle in self.unanswered:  # uvicorn marks only the newest request, which may not be the one being answered
            cycle.disconnected = True
        super().connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102
        self.since = self.loop.time()
        super().pause_writing()
        self._http_server.limit_unread()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._ending:
            return
        if not self.unanswered and not self._in_head:
            self.since = self.loop.time()
        self._received += len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data, head = data[upgrade.args[0] :], self._head_without_upgrade()
                    self.parser = httptools.HttpRequestParser(self)  # the old one ignores what follows a `close`
                    self.parser.feed_data(head)
            if self._in_head or self._received > MAX_HEAD_BYTES:
                self._check_head(self._received)
        except httptools.HttpParserError:
            self.refuse(*self._fault)

    # From the parser

    def on_headers_complete(self) -> None:  # noqa: D102
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError
            return
        if self._received > MAX_HEAD_BYTES:  # most of it may be body
            self._received = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._check_head(self._received)
        version, hosts = self.parser.get_http_version(), [name for name, _ in self.headers].count(b"host")
        if version not in ("1.0", "1.1"):
            self._fail("no-request", 505, f"this is HTTP/{version}: send HTTP/1.1")
        if hosts > 1 or (version == "1.1" and not hosts):  # RFC 9112
            self._fail("no-request", 400, f"the request has {hosts or 'no'} Host headers: send one")
        super().on_headers_complete()
        self.unanswered.append(self.cycle)
        self.headers, self._received = [], 0  # headers of a trailer are not headers of the request
        self._fault = "no-request", 400, "the body is not a valid chunked body (RFC 9112)"

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._received = 0
        super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102
        if not self.parser.should_upgrade():
            self._received, self._fault = 0, NO_REQUEST
            self.scope["state"][WHOLE] = True
            super().on_message_complete()

    def on_response_complete(self) -> None:  # noqa: D102
        self.unanswered.popleft()
        self.since = self.loop.time()
        if self.pipeline:
            return super().on_response_complete()
        # uvicorn would start a timer here, which costs time at each request. `check` does its work.
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, with which it would end before the last save."""

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpSettings,
        requests: ServerState,
        count_end: Callable[[str], Any],
        stopping: Callable[[], bool],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`count_end` gets the cause when we end a connection. While `stopping`, a connection ends after its answer.

        uvicorn keeps in `requests` the tasks that answer requests, and the number of answered ones. With `tls` the
        server accepts only TLS.
        """
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
                interface="asgi3",
                headers=HEADERS + (TLS_HEADERS if tls else []),
                ssl_context_factory=(lambda *_: tls) if tls else None,
                timeout_graceful_shutdown=STOP_SECONDS,
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,  # nothing depends on the client's address or scheme
            )
        )
        self.limits, self.server_state, self.count_end, self.stopping = limits, requests, count_end, stopping
        self.open = cast("set[Connection]", requests.connections)
        """All open connections."""
        self._stop = asyncio.Event()

    def make_room(self, new: Connection) -> None:
        """If there are too many connections, end the longest idle one, or the new one if none is idle."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if len(self.open) > min(self.limits.max_connections, descriptors // 2):
            if idle := [connection for connection in self.open - {new} if not connection.unanswered]:
                min(idle, key=lambda connection: connection.since).end("too-many")
            else:
                new.refuse("too-many", 503, "too many connections at a time")

    def limit_unread(self) -> None:
        """If too many bytes are unread, end the connections whose clients stopped reading first."""
        unread = sorted((c for c in self.open if c.unread_bytes), key=lambda connection: connection.since)
        excess = sum(connection.unread_bytes for connection in unread) - MAX_UNREAD_BYTES
        while excess > 0:
            excess -= unread[0].unread_bytes
            unread.pop(0).end("unread-bytes")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with a time limit on TLS handshakes."""
        loop, config = asyncio.get_running_loop(), self.config
        protocol = partial(Connection, self, config=config, server_state=self.server_state, app_state={})
        seconds = self.limits.header_timeout if config.ssl else None
        listen = partial(loop.create_server, protocol, ssl=config.ssl, backlog=config.backlog)
        self.servers = [await listen(sock=each, ssl_handshake_timeout=seconds) for each in sockets or []]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel requests after three quarters of STOP_SECONDS, and end all connections at nine tenths of it."""
        loop = asyncio.get_running_loop()
        for share in (0.75, 0.8, 0.85):  # the Redis client can take the first cancellation for its own
            loop.call_later(share * STOP_SECONDS, self._cancel)
        loop.call_later(0.9 * STOP_SECONDS, self._abort, self.open)
        await super().shutdown(sockets)

    def _cancel(self) -> None:
        self._abort(connection for connection in self.open if connection.unread_bytes)
        for task in self.server_state.tasks:
            task.cancel()

    def _abort(self, connections: Iterable[Connection]) -> None:
        for connection in list(connections):
            connection.transport.abort()

    async def main_loop(self) -> None:
        """Check once a second how long connections have waited, until `stop`. uvicorn wakes up ten times a second."""
        while not await self.on_tick(0):
            for connection in list(self.open):
                connection.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    def stop(self) -> None:
        """Answer the requests in flight, and end."""
        self.should_exit = True
        self._stop.set()

    capture_signals = contextlib.nullcontext  # type: ignore[assignment]
    """Signals are left to the process."""
