"""`POST /v1/models/{name}/predict`: a raw ASGI callable, so that a prediction costs neither routing nor validation.

It answers every prediction: of one event, of many, and with `explain`.
"""

import asyncio
import contextlib
import re
import zlib
from collections.abc import Iterable

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.errors import Rejected
from service.learning.identity import MAX_CLASSES
from service.serving.http import problems
from service.serving.http.limits import LINGER_SECONDS, PIECE_BYTES, WHOLE, InFlight
from service.serving.http.problems import Refusal
from service.serving.predictor import TOP, Predictor
from service.serving.requests import of_body

PREDICT = "/v1/models/{name}/predict"
PATH = re.compile("/v1/models/([^/]+)/predict").fullmatch
NOT_JSON = "send the body as JSON, with the header content-type: application/json"
ENCODED = "the body's content-encoding is unknown: send it as gzip, or as it is"
NOT_GZIP = "the body is not gzip, as its content-encoding says"

JSON = b"content-type", b"application/json"
CANDIDATE = "who is to answer, of the candidates"


class PredictParameters(BaseModel):
    """The parameters of a query."""

    explain: bool = Field(False, description="add what each feature contributes to the score")
    top: int = Field(TOP, ge=1, le=MAX_CLASSES, description="so many scores, with three labels and more")
    candidate: str | None = Field(None, description=CANDIDATE)


DEFAULTS = PredictParameters()


class Predict:
    """Answers predictions of the model that `path_params` of the scope name."""

    def __init__(self, predictor: Predictor, in_flight: InFlight) -> None:
        self._predictor, self._in_flight = predictor, in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            body = await self._answer(scope, receive)
        except problems.ANSWERED as error:
            answer = problems.answer_to(error)
        except Exception:
            await problems.defect()(scope, receive, send)
            raise
        else:
            headers = [(b"content-length", b"%d" % len(body)), JSON]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            return await send({"type": "http.response.body", "body": body})
        if answer.status_code in problems.ENDING:
            await _send_last(answer, scope, receive, send)
        else:
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        name, parameters = scope["path_params"]["name"], _parameters(scope["query_string"])
        self._predictor.answering(name).by(parameters.candidate)  # before a body is waited for
        if _is_gzip(scope["headers"]):
            scope, receive = {**scope, "state": {}}, _unpacked(receive)  # it comes in pieces, though it may be whole
        body = await self._in_flight.read(scope, receive)
        self._in_flight.take(len(body))
        try:
            request = name, body, parameters.explain, parameters.top, parameters.candidate
            return msgspec.json.encode(self._predictor.at_once(*request) or await self._predictor.beside(*request))
        except Rejected as rejected:
            raise of_body(rejected, body) from None
        finally:
            self._in_flight.release(len(body))


def _parameters(query: bytes) -> PredictParameters:
    """Parse a query; raises RequestValidationError."""
    if not query:
        return DEFAULTS
    values = QueryParams(query)
    problems.check_parameters(values, PredictParameters.model_fields)
    try:
        return PredictParameters.model_validate(dict(values))
    except ValidationError as invalid:
        raise RequestValidationError(invalid.errors()) from None


def _is_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body is packed; raises Refusal if its headers say that it is not JSON, or is encoded otherwise."""
    media: bytes | None = None
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"content-type" and media is None:
            media = value
        elif name == b"content-encoding":
            codings += [coding for part in value.lower().split(b",") if (coding := part.strip()) != b"identity"]
    if media is not None and media != b"application/json":
        media = media.partition(b";")[0].strip().lower()
        if media != b"application/json" and not media.endswith(b"+json"):
            raise Refusal(415, NOT_JSON)
    if codings and codings not in ([b"gzip"], [b"x-gzip"]):
        raise Refusal(415, ENCODED)
    return bool(codings)


def _unpacked(receive: Receive) -> Receive:
    """`receive` for a body that is gzip. Its messages have a piece of the unpacked body each; it raises Refusal."""
    decoder, packed, more = zlib.decompressobj(zlib.MAX_WBITS | 16), b"", True
    pending = False  # the decoder may have more to say without more input

    async def unpack() -> Message:
        nonlocal decoder, packed, more, pending
        if packed or pending:
            await asyncio.sleep(0)  # other requests have their turn
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
            raise Refusal(400, NOT_GZIP) from None
        packed = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        pending = len(piece) == PIECE_BYTES and not decoder.eof
        if not (packed or pending or more or decoder.eof):
            raise Refusal(400, NOT_GZIP)
        return {"type": "http.request", "body": piece, "more_body": bool(packed) or pending or more}

    return unpack


async def _send_last(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the last answer of a connection, and read on for a while: a client that is reset could not read it."""
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # cancelled at a stop, it is to end all the same
        async with asyncio.timeout(LINGER_SECONDS):
            while WHOLE not in scope.get("state", ()) and (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body"})
