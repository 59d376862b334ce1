"""The edge of the application: requests are timed, their bodies bounded in bytes and time, and their number."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from prometheus_client import Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.monitoring.metrics import Metrics
from service.serving import problems
from service.serving.problems import Refusal

BODIES = 8
"""So many of the largest may be held at a time, arriving or being answered."""
SMALL_BODY = 64 << 10
"""Up to here a body is never refused for what others hold: there are no more of them than connections."""
WHOLE = "perceptron.whole"
"""In the scope of a request whose body is there: nothing is to be waited for."""
NOT_JSON = "send the body as JSON, with the header content-type: application/json"
ENCODED = "the body is compressed or otherwise encoded: send it without a content-encoding"
_TAKEN = "perceptron.in_flight"


class _Body:
    """One that arrives, and the end of the time that it has. (`asyncio.timeout` costs a tenth of a prediction.)"""

    timer: asyncio.TimerHandle | None = None

    def __init__(self) -> None:
        self.size, self.late = 0, False

    def begin(self, seconds: float) -> None:
        """Wait for it so long: then what waits, the task that calls this, is cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are answered in tasks
        self._task, self._cancelling = task, task.cancelling()
        self.timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """Wait for it no more."""
        if not self.late:
            self.late = True
            self._task.cancel()

    @property
    def ended(self) -> bool:
        """Of a wait that was cancelled, once: whether that was the end of its time, and nothing else."""
        return self.late and self._task.uncancel() <= self._cancelling


class InFlight:
    """Requests under way. A body that is slow to arrive takes no place: those are for requests that can be answered."""

    def __init__(self, places: int, body_bytes: int, body_seconds: float) -> None:
        self._places = places
        self._body_bytes, self._body_seconds = body_bytes, body_seconds
        self._arriving: dict[_Body, None] = {}
        self._held = 0  # bytes of all bodies, arriving or being answered

    @property
    def full(self) -> bool:
        """Whether there is no place for one more request."""
        return not self._places

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """A request's body, counted as it streams in, and a place for the request; raises Refusal."""
        if why := unreadable(scope["headers"]):
            raise Refusal(415, why)
        if _declared(scope["headers"]) > self._body_bytes:
            self._too_large()
        parts: list[bytes] = []
        body, more = _Body(), True
        if WHOLE not in scope:
            body.begin(self._body_seconds)
        self._arriving[body] = None
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    # Nobody reads this answer, but it is counted, and no defect of ours.
                    raise Refusal(400, "the connection ended before the body did")
                more = message.get("more_body", False)
                if part := message.get("body"):
                    self._arrived(body, len(part))
                    parts.append(part)
            self.take(scope, body.size)
        except asyncio.CancelledError:
            if not body.ended:
                raise
            self._not_given_way(body)
            raise Refusal(408, f"the body did not arrive within {self._body_seconds:g} seconds") from None
        finally:
            if body.timer is not None:
                body.timer.cancel()
            if body in self._arriving:
                self._given_way(body)
        return b"".join(parts)

    def _arrived(self, body: _Body, more: int) -> None:
        """Count a part. Where all bodies together are too large, the largest of those that arrive gives way."""
        self._not_given_way(body)
        body.size += more
        self._held += more
        if body.size > self._body_bytes:
            self._too_large()
        if self._held > BODIES * self._body_bytes:
            largest = max(self._arriving, key=lambda one: one.size)
            if largest.size > SMALL_BODY:
                self._given_way(largest)
                self._not_given_way(body)
                largest.end()

    def _too_large(self) -> NoReturn:
        raise Refusal(413, f"the body is larger than {self._body_bytes} bytes")

    def _given_way(self, body: _Body) -> None:
        del self._arriving[body]
        self._held -= body.size

    def _not_given_way(self, body: _Body) -> None:
        if body not in self._arriving:
            raise Refusal(503, "too many bytes of request bodies at a time")

    def take(self, scope: Scope, body_bytes: int = 0) -> None:
        """A place for a request, until the request is `done`; raises Refusal where all are taken."""
        if self.full:
            raise Refusal(503, "too many requests at a time")
        self._places -= 1
        self._held += body_bytes
        scope[_TAKEN] = body_bytes

    def done(self, scope: Scope) -> None:
        """The request of this scope is answered."""
        if _TAKEN in scope:
            self._places += 1
            self._held -= scope[_TAKEN]


class Edge:
    """Times each request under its route's template; lets connections end at a stop."""

    def __init__(self, app: ASGIApp, metrics: Metrics, stopping: Callable[[], bool], in_flight: InFlight) -> None:
        self._app, self._metrics, self._stopping, self._in_flight = app, metrics, stopping, in_flight
        self._timed: dict[tuple[str, str, str], Histogram] = {}  # to look one up there takes longer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, code, method = time.perf_counter(), "500", scope["method"]
        if method == "HEAD":  # answered as GET wherever that is: of the answer the server sends the head alone
            scope = dict(scope, method="GET")

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
                if self._stopping():
                    # A client that keeps its connection would send its next request into a closed one.
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not self._stopping():
                raise
            # The time for requests in flight is over. That is no defect, which uvicorn would print a trace of.
            await problems.response(503, "the service is shutting down")(scope, receive, sending)
        finally:
            self._in_flight.done(scope)
            route = scope.get("route")
            template = getattr(route, "path", "unknown")
            key = template, method if template != "unknown" else "any", code
            if key not in self._timed:
                self._timed[key] = self._metrics.requests.labels(*key)
            self._timed[key].observe(time.perf_counter() - started)


def unreadable(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Why a body is not read, by what is said of it: it is JSON, as the first that says so has it, and nothing else."""
    media = None
    for name, value in headers:
        if name == b"content-type":
            if media is None:
                media = value
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            return ENCODED
    if media is None or media == b"application/json":
        return None
    media = media.partition(b";")[0].strip().lower()
    return None if media == b"application/json" or media.endswith(b"+json") else NOT_JSON


def _declared(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The bytes that a body is said to have; 0 where that is not said."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
