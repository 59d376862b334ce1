"""`POST /v1/models/{name}/predict`: a raw ASGI callable, so that a prediction costs neither routing nor validation."""

import asyncio
import contextlib
import re

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import Rejected
from service.learning.identity import MAX_CLASSES
from service.serving.http import problems
from service.serving.http.limits import LINGER_SECONDS, WHOLE
from service.serving.http.request_bodies import InFlight, is_gzip, unpacked
from service.serving.request_parser import request_fault
from service.serving.scoring import DEFAULT_TOP, Predictor

PREDICT = "/v1/models/{name}/predict"
PATH = re.compile("/v1/models/([^/]+)/predict").fullmatch

JSON = b"content-type", b"application/json"
CANDIDATE = "the candidate that answers"


class PredictParameters(BaseModel):
    """The query parameters of a prediction."""

    explain: bool = Field(False, description="add what each feature contributes to the score")
    top: int = Field(DEFAULT_TOP, ge=1, le=MAX_CLASSES, description="the number of scores, with three labels and more")
    candidate: str | None = Field(None, description=CANDIDATE)


DEFAULTS = PredictParameters()


class Predict:
    """Answers prediction requests to the model that the scope's `path_params` name."""

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
        self._predictor.answering(name).by(parameters.candidate)  # raise before waiting for the body
        if is_gzip(scope["headers"]):
            scope, receive = {**scope, "state": {}}, unpacked(receive)  # the unpacked body comes in pieces
        body = await self._in_flight.read(scope, receive)
        self._in_flight.take(len(body))
        try:
            answer = await self._predictor.predict(name, body, parameters.explain, parameters.top, parameters.candidate)
            return msgspec.json.encode(answer)
        except Rejected as rejected:
            raise request_fault(rejected, body) from None
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


async def _send_last(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the last answer of a connection, then read on for a while: a client that is reset could not read it."""
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # if a stop cancels it, the answer still ends
        async with asyncio.timeout(LINGER_SECONDS):
            while WHOLE not in scope.get("state", ()) and (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body"})
