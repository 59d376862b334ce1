"""Routes that are answered by raw ASGI callables, which cost neither FastAPI's routing nor its validation."""

import asyncio
import contextlib

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import Rejected
from service.serving.http import problems
from service.serving.http.request_bodies import InFlight
from service.serving.http.server import LINGER_SECONDS, WHOLE
from service.serving.predictions import PredictParameters, V1Request
from service.serving.scoring import Predictor

DEFAULTS = PredictParameters()


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


class Predict(Endpoint):
    """Answers prediction requests to the model that the scope's `path_params` name."""

    def __init__(self, predictor: Predictor, in_flight: InFlight) -> None:
        self._predictor, self._in_flight = predictor, in_flight

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """The predictions."""
        name, text = scope["path_params"]["name"], scope["query_string"]
        query = PredictParameters.model_validate(dict(QueryParams(text))) if text else DEFAULTS
        self._predictor.answering(name, query.candidate)  # raise before waiting for the body
        body = await self._in_flight.read(scope, receive)
        self._in_flight.take(len(body))
        request = V1Request(body, self._in_flight.limits.max_instances)
        try:
            return await self._predictor.predict(name, request, query)
        except Rejected as rejected:
            raise request.fault(rejected) from None
        finally:
            self._in_flight.release(len(body))
