"""Connections: what one client may hold, and all of them together. Whatever leans on uvicorn's insides is here.

A connection that is not being answered waits for its client: for the head of a request (its line and headers), for its
body (see `edge`), or for an answer to be read. Each wait has an end, and where connections are too many, those go first
that waited longest. No task ever waits for a client to read: an answer goes to the transport whole, and a
connection's next request is begun when the answer before has been read.

A small request that `direct` can answer is held until it is whole, and answered with no task at all.
"""

import resource
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.serving import problems
from service.serving.direct import MOST_BYTES, Asked, Direct
from service.serving.edge import WHOLE

MAX_HEAD_BYTES = 64 << 10
MAX_URL_BYTES = 32 << 10
MAX_HEADERS = 100
"""Of a request: as other servers take, and many times what browsers and balancers send."""
MAX_PIPELINED = 32
"""Requests of one connection that came before their turn."""
MAX_UNREAD_BYTES = 64 << 20
"""Of answers that nobody has read yet."""
DIRECT = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n%b"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_JOINED_BYTES = 64 << 10
"""Of a body's first bytes that are copied behind the head."""
LINGER_SECONDS = 1.0
"""For a client to read why it is refused, while what it still sends is thrown away."""


class ConnectionLimits(NamedTuple):
    """How many connections there may be, and for how long each may keep us waiting."""

    connections: int = 1000
    header_seconds: float = 10.0
    answer_seconds: float = 30.0


class Connections:
    """All connections, whoever was answered longest ago first."""

    def __init__(
        self,
        limits: ConnectionLimits,
        ended: Callable[[str], None],
        needed: Callable[[], int],
        direct: Direct | None = None,
    ) -> None:
        """`ended` hears the cause of each end that is ours; `needed` says how many descriptors to keep free."""
        self.limits, self.ended, self.direct = limits, ended, direct
        self._needed = needed
        self._all: dict[Connection, None] = {}
        self._unread: dict[Connection, None] = {}
        self._every: list[tuple[bytes, bytes]] = []
        self._text = b""

    def headers(self, every: list[tuple[bytes, bytes]]) -> bytes:
        """The text of these, which are the same for a second."""
        if every is not self._every:
            self._every, self._text = every, b"".join(b"%b: %b\r\n" % header for header in every)
        return self._text

    def add(self, new: "Connection") -> None:
        """Take it in; beyond the bound another one ends: an idle one if there is any, or one that keeps us waiting."""
        self._all[new] = None
        if len(self._all) <= self._most():
            return
        longest = next(c for c in self._all if c.idle)
        if longest is new:
            longest = next(c for c in self._all if c.idle or c.keeps_us_waiting)
        if longest is new:
            new.refuse("too-many", 503, "too many connections at a time")
        else:
            longest.end("too-many")

    def _most(self) -> int:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            return self.limits.connections
        return min(self.limits.connections, max(descriptors // 4, descriptors - self._needed()))

    def remove(self, connection: "Connection") -> None:
        """Forget it."""
        self._all.pop(connection, None)
        self._unread.pop(connection, None)

    def answered(self, connection: "Connection") -> None:
        """An answer is on its way. Where too much of them is unread, those end who have not read for the longest."""
        if connection in self._all:
            del self._all[connection]
            self._all[connection] = None
        if connection in self._unread:
            sizes = {c: c.transport.get_write_buffer_size() for c in self._unread}
            excess = sum(sizes.values()) - MAX_UNREAD_BYTES
            for longest, size in sizes.items():
                if excess <= 0:
                    break
                excess -= size
                longest.end("unread-bytes")

    def unread(self, connection: "Connection", unread: bool) -> None:
        """Its client does not read, or does again."""
        if unread:
            self._unread[connection] = None
        else:
            self._unread.pop(connection, None)

    def sweep(self) -> None:
        """End those whose time is over."""
        for connection in list(self._all):
            connection.check()


class _Joined:
    """A request's way to its client: the head of the answer goes with what follows it, as one write is half of two."""

    def __init__(self, transport: Any, headers: bytes, close: Callable[[], None]) -> None:
        """`headers` are those of every answer; `close` ends the connection when all is sent."""
        self._transport, self._headers, self._close = transport, headers, close
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """The head waits for the body, which uvicorn writes next, if only as no bytes."""
        if self._head is None and data != CONTINUE:
            self._head = b"%b%b\r\n" % (data[:-2], self._headers)
            return
        if len(data) > MAX_JOINED_BYTES:
            self._flush()
        self._transport.write(self._head + data if self._head else data)
        self._head = self._head and b""

    def close(self) -> None:
        """When all is sent."""
        self._flush()
        self._close()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""


class _Refused(Exception):
    """Raised through the parser, which stops at it."""


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's, and its limits."""

    def __init__(self, connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._others = connections
        self._since = self.loop.time()  # when we began to wait for its client
        self._head_bytes = 0
        self._more = 0  # bytes since a request began or its body went on: more of a head, of a trailer
        self._went_on = False
        self._why: tuple[str, int, str] = ("no-request", 400, "this is no HTTP request")
        self._refused = False
        self._unread = False
        self._next: tuple[RequestResponseCycle, Any] | None = None
        self._direct = connections.direct
        self._asked: Asked | None = None  # of a request that is held
        self._held = b""  # of its body
        self._answered = False  # one, of what came last

    @property
    def idle(self) -> bool:
        """Whether no request is under way, beyond its head."""
        return not self._asked and (self.cycle is None or self.cycle.response_complete)

    @property
    def keeps_us_waiting(self) -> bool:
        """Whether its request waits for the client, and not for us."""
        return bool(self._asked) or (not self.idle and (self.cycle.more_body or self._unread))

    def end(self, cause: str) -> None:
        """End it now, whatever is under way."""
        self._others.ended(cause)
        self._others.remove(self)
        self.transport.abort()

    def refuse(self, cause: str, status: int, detail: str) -> None:
        """Say why where the client can know which request is meant, read no more, and end it."""
        self._others.ended(cause)
        self._hand_on()
        if self.idle or self._arriving:
            problem = problems.response(status, detail, headers={"connection": "close"})
            every = [*self.server_state.default_headers, *problem.raw_headers]
            headers = [b"%b: %b\r\n" % header for header in every]
            self.transport.write(b"".join([STATUS_LINE[status], *headers, b"\r\n", problem.body]))
            self.transport.write_eof()
        if self._arriving:  # it is answered: what waits for its body hears that no more comes
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    @property
    def _arriving(self) -> bool:
        """Whether a request has its turn, and its body is not all there."""
        return not self.idle and not self.pipeline and self.cycle.more_body and not self.cycle.response_started

    def _linger(self) -> None:
        """Read no more, and end it when its client had the time to read why."""
        self._refused = True
        self.pipeline.clear()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _close(self) -> None:
        """All is sent. A client that still sends would be reset before it had read that."""
        if self.cycle.more_body:
            self.transport.write_eof()
            self._linger()
        else:
            self.transport.close()

    def check(self) -> None:
        """End it if it has kept us waiting for too long."""
        self._hand_on()  # it is slow
        waited, limits = self.loop.time() - self._since, self._others.limits
        if self._unread or self.transport.is_closing():
            if waited > limits.answer_seconds:
                self.end("unread")
        elif self.idle and waited > limits.header_seconds and not self._refused:
            if self._head_bytes or self._more:
                detail = f"the request's headers did not arrive within {limits.header_seconds:g} seconds"
                self.refuse("slow-headers", 408, detail)
            else:
                self.transport.close()

    # From the transport

    def connection_made(self, transport: Any) -> None:  # noqa: D102
        super().connection_made(transport)
        self._others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._hand_on()
        super().connection_lost(exc)
        self._others.remove(self)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._refused:
            return
        self._went_on = self._answered = False
        super().data_received(data)
        # Of a header whose end has not come the parser tells nothing, and keeps all.
        self._more = 0 if self._went_on else self._more + len(data)
        if self._more > MAX_HEAD_BYTES and not self._refused:
            self.refuse("large-headers", 431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes")

    def pause_writing(self) -> None:
        """Its client does not read. The answer under way is given to the transport all the same: see the module."""
        self._unread, self._since = True, self.loop.time()
        self._others.unread(self, True)

    def resume_writing(self) -> None:
        """It has read."""
        self._unread, self._since = False, self.loop.time()
        self._others.unread(self, False)
        if self._next is not None:
            (cycle, app), self._next = self._next, None
            self._start_asgi_task(cycle, app)

    # From the parser

    def on_message_begin(self) -> None:  # noqa: D102
        self._went_on, self._head_bytes = True, 1  # not 0: a head is under way
        if self.idle:
            self._since = self.loop.time()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop("pipelined", 503, "too many requests at a time on this connection")
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:  # noqa: D102
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._stop("large-headers", 414, f"the request's line is longer than {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: D102
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop("large-headers", 431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes")
        if len(self.headers) >= MAX_HEADERS:
            self._stop("large-headers", 431, f"the request has more than {MAX_HEADERS} headers")
        name = name.lower()  # as uvicorn, and not by another call: a request has many
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._went_on = True
        if self._asked:
            self._held += body
            if len(self._held) > MOST_BYTES:
                self._hand_on()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102
        if self._asked and self._direct:
            said = self._direct.answer(self._asked, self.headers, self._held)
            if said is not None:
                self._asked, self._held, self._answered = None, b"", True
                every = self._others.headers(self.server_state.default_headers)
                self.transport.write(DIRECT % (len(said), every, said))
                self.on_response_complete()
                return
            self._hand_on()
        super().on_message_complete()
        cast(Any, self.cycle.scope)[WHOLE] = True

    def _stop(self, *why: Any) -> NoReturn:
        self._why = why
        raise _Refused

    # From uvicorn

    def on_headers_complete(self) -> None:  # noqa: D102
        self._head_bytes = 0
        if self._direct and (asked := self._direct.known(self.url)) and self._is_plain():
            self._asked = asked
        else:
            super().on_headers_complete()

    def _is_plain(self) -> bool:
        """Whether a request has its turn, and wants nothing but an answer. No more than one of what came at a time."""
        parser, not_now = self.parser, self.expect_100_continue or self._unread or self._answered
        return (
            self.idle and not not_now and parser.get_method() == b"POST" and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
        )  # fmt: skip

    def _hand_on(self) -> None:
        """Give the request that is held to its route, with what of its body is there."""
        if self._asked:
            held, self._asked, self._held = self._held, None, b""
            super().on_headers_complete()
            if held:
                super().on_body(held)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["method"] != "HEAD":  # whose answer is a head alone
            headers = self._others.headers(cycle.default_headers)
            cycle.transport = cast(Any, _Joined(self.transport, headers, self._close))
            cycle.default_headers = []
        if self._unread:
            self._next = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """As uvicorn, without its timer for who asks no more: `check` sees that, and a timer a request is not cheap."""
        self._since = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        self._others.answered(self)

    def shutdown(self) -> None:
        """A request that has begun is answered."""
        self._hand_on()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped."""
        del msg
        self._hand_on()
        cause, status, detail = self._why
        if cause == "no-request" and self._arriving:
            detail = "the body is not in chunks as HTTP has them"
        self.refuse(cause, status, detail)
