"""A route that is answered by a raw ASGI callable: it costs neither FastAPI's routing nor its validation."""

import asyncio
import contextlib

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.serving.http import problems
from service.serving.http.limits import LINGER_SECONDS, WHOLE


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
