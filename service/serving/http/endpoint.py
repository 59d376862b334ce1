"""Routes that are answered by raw ASGI callables, which cost neither FastAPI's routing nor its validation.

Bodies of requests may be gzip. There are limits on the size and time of each body and the size of all together.
"""

import asyncio
import contextlib
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.errors import Rejected
from service.serving.http import problems
from service.serving.http.server import LINGER_SECONDS, PIECE_BYTES, WHOLE
from service.serving.predictions import PredictParameters, ScoringRequest
from service.serving.scoring import Scorer
from service.settings.connections import HttpSettings

DEFAULTS = PredictParameters()
MAX_LARGE_BODIES = 8
"""All bodies that arrive or are being answered have at most the bytes of this many bodies of the largest size."""
SMALL_BODY_BYTES = 64 << 10
"""Bytes of a body that is never refused because of other bodies."""
NOT_GZIP = "the body is not gzip, although its content-encoding says so"


class Endpoint:
    """Answers the requests of one route with what `answer` returns, the body of a JSON response, or raises."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            body = await self.answer(scope, receive)
        except Exception as error:
            answer = await problems.answer_to(None, error)
            if "connection" in answer.headers:
                return await _send_last(answer, scope, receive, send)
            await answer(scope, receive, send)
            if answer.status_code == 500:
                raise
        else:
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """The JSON of the answer to a request."""
        raise NotImplementedError


async def _send_last(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the last answer of a connection, then read on for a while: a client that is reset could not read it."""
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # if a stop cancels it, the answer still ends
        async with asyncio.timeout(LINGER_SECONDS):
            while WHOLE not in scope.get("state", ()) and (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body"})


class InFlight:
    """Requests in flight: the bytes of their bodies, and a number of places for requests that are being answered."""

    def __init__(self, limits: HttpSettings) -> None:
        self.limits, self._free_places, self._held_bytes = limits, limits.max_in_flight, 0
        self._arriving: dict[asyncio.Timeout, int] = {}  # bytes so far

    def take(self, body_bytes: int = 0) -> None:
        """Take a place for a request with a body of this size, until `release`; raises HTTPException."""
        if not self._free_places:
            raise HTTPException(503, "too many requests at a time")
        self._free_places -= 1
        self._held_bytes += body_bytes

    def release(self, body_bytes: int = 0) -> None:
        """Give back the place that `take` took."""
        self._free_places += 1
        self._held_bytes -= body_bytes

    async def read(self, scope: Scope, receive: Receive, *media: bytes) -> bytes:
        """The body of a request, unpacked and without a byte order mark.

        Raises HTTPException unless it is JSON or of one of these media types.
        """
        if is_gzip(scope["headers"], media):
            scope, receive = {**scope, "state": {}}, unpacked(receive)  # the unpacked body comes in pieces
        if WHOLE in scope.get("state", ()):
            body: bytes = (await receive()).get("body", b"")
            self._check_size(len(body))
            return body.removeprefix(BOM_UTF8)
        parts, more, seconds = list[bytes](), True, self.limits.body_timeout
        timeout = asyncio.timeout(seconds)
        self._arriving[timeout] = 0
        try:
            self._check_size(next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0))
            async with timeout:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection ended before the body did")
                    more = message.get("more_body", False)
                    parts.append(message.get("body", b""))
                    self._count(timeout, len(parts[-1]))
        except TimeoutError:
            self._count(timeout, 0)
            raise HTTPException(408, f"the body did not arrive within {seconds:g} seconds") from None
        finally:
            self._arriving.pop(timeout, None)
        return b"".join(parts).removeprefix(BOM_UTF8)

    def _check_size(self, size: int) -> None:
        if size > self.limits.max_body_bytes:
            raise HTTPException(413, f"the body is larger than {self.limits.max_body_bytes} bytes")

    def _count(self, timeout: asyncio.Timeout, size: int) -> None:
        """Count a part of a body. If all bodies together are too large, the largest one that arrives is refused."""
        if timeout in self._arriving:
            self._arriving[timeout] += size
            self._check_size(self._arriving[timeout])
            largest = max(self._arriving, key=self._arriving.__getitem__)
            excess = self._held_bytes + sum(self._arriving.values()) - MAX_LARGE_BODIES * self.limits.max_body_bytes
            if excess > 0 and self._arriving[largest] > SMALL_BODY_BYTES:
                del self._arriving[largest]
                largest.reschedule(0)
        if timeout not in self._arriving:
            raise HTTPException(503, "too many bytes of request bodies at a time")


def media_type(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The media type of a body, without parameters; JSON if no header says it. The first header counts."""
    value = next((value for name, value in headers if name == b"content-type"), b"application/json")
    return value if value == b"application/json" else value.partition(b";")[0].strip().lower()


def is_gzip(headers: Sequence[tuple[bytes, bytes]], allowed: Sequence[bytes] = ()) -> bool:
    """Whether a body is gzip; raises HTTPException if it has another encoding, or is neither JSON nor `allowed`."""
    media, codings = media_type(headers), list[bytes]()
    for name, value in headers:
        if name == b"content-encoding":
            codings += [coding for part in value.lower().split(b",") if (coding := part.strip()) != b"identity"]
    if media != b"application/json" and not media.endswith(b"+json") and media not in allowed:
        raise HTTPException(415, "send the body as JSON, with the header content-type: application/json")
    if codings and codings not in ([b"gzip"], [b"x-gzip"]):
        raise HTTPException(415, "the body's content-encoding is unknown: send it as gzip, or uncompressed")
    return bool(codings)


def unpacked(receive: Receive) -> Receive:
    """A `receive` for a gzip body: each message has a piece of the unpacked body. It raises HTTPException."""
    decoder, packed, more = zlib.decompressobj(zlib.MAX_WBITS | 16), b"", True
    pending = False  # the decoder may have more output without more input

    async def unpack() -> Message:
        nonlocal decoder, packed, more, pending
        if packed or pending:
            await asyncio.sleep(0)  # the event loop turns between two pieces
        else:
            message = await receive()
            if message["type"] != "http.request":
                return message
            packed, more = message.get("body", b""), message.get("more_body", False)
        try:
            if decoder.eof and packed:  # another member follows
                decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
            piece = decoder.decompress(packed, PIECE_BYTES)
        except zlib.error:
            raise HTTPException(400, NOT_GZIP) from None
        packed = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        pending = len(piece) == PIECE_BYTES and not decoder.eof
        if not (packed or pending or more or decoder.eof):
            raise HTTPException(400, NOT_GZIP)
        return {"type": "http.request", "body": piece, "more_body": bool(packed) or pending or more}

    return unpack


class Predict(Endpoint):
    """Answers prediction requests to the model that the scope's `path_params` name."""

    def __init__(self, scorer: Scorer, in_flight: InFlight, parse: Callable[[bytes], ScoringRequest]) -> None:
        """`parse` makes a request of its body."""
        self._scorer, self._in_flight, self._parse = scorer, in_flight, parse

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """The predictions."""
        name, text = scope["path_params"]["name"], scope["query_string"]
        query = PredictParameters.model_validate(dict(QueryParams(text))) if text else DEFAULTS
        self._scorer.answering(name, query.candidate)  # raise before waiting for the body
        body = await self._in_flight.read(scope, receive)
        self._in_flight.take(len(body))
        request = self._parse(body)
        try:
            return await self._scorer.predict(name, request, query)
        except Rejected as rejected:
            raise request.fault(rejected) from None
        finally:
            self._in_flight.release(len(body))
