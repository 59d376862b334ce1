"""Errors over HTTP, as RFC 9457 problem documents. No value that a client sent is echoed."""

from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from msgspec import Meta
from starlette.exceptions import HTTPException

from service.errors import PerceptronError, Rejected, Unanswerable, UnknownCandidate, UnknownModel
from service.text import did_you_mean


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """A member at fault."""

    pointer: Annotated[str, Meta(examples=["/features/age"])]
    reason: Annotated[str, Meta(examples=["wrong-type"])]


class Problem(msgspec.Struct, forbid_unknown_fields=True):
    """A problem document (RFC 9457)."""

    type: Annotated[str, Meta(examples=["about:blank"])]
    title: Annotated[str, Meta(examples=["Unprocessable Entity"])]
    status: Annotated[int, Meta(examples=[422])]
    detail: Annotated[str, Meta(examples=['feature "age" must be a number, got a string'])]
    errors: list[Fault]


class Refusal(PerceptronError):
    """A request that cannot be answered, with a status and one line that says why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


ENDING = 408, 413
"""Statuses after which the connection ends, since the rest of the body is not read."""
UNAUTHORIZED = "send a token, with the header authorization: Bearer TOKEN"
NOTHING_SERVED = "nothing is served at this path: /docs shows what is"
ANSWERED = Refusal, UnknownModel, UnknownCandidate, Unanswerable, Rejected, RequestValidationError
"""Errors of a request that `answer_to` turns into an answer."""
EXPECTED = {
    "bool_parsing": "true or false, got {got}",
    "int_parsing": "a whole number, got {got}",
    "int_parsing_size": "a whole number, got one of too many digits",
    "greater_than_equal": "at least {ge}, got less",
    "less_than_equal": "at most {le}, got more",
}
"""The expected value of a parameter, by the type of pydantic's error."""


def problem(status: int, detail: str, *faults: Fault) -> Problem:
    """A problem document."""
    return Problem("about:blank", HTTPStatus(status).phrase, status, detail, list(faults))


def response(status: int, detail: str, *faults: Fault, headers: Any = None) -> Response:
    """A response with a problem document."""
    if status == 503:
        headers = {**(headers or {}), "retry-after": "1"}
    elif status in ENDING:
        headers = {"connection": "close"}
    body = msgspec.json.encode(problem(status, detail, *faults))
    return Response(body, status, headers, media_type="application/problem+json")


def unauthorized() -> Response:
    """The answer to a request without a token."""
    return response(401, UNAUTHORIZED, headers={"www-authenticate": "Bearer"})


def defect() -> Response:
    """The answer to a request that failed by our fault. The error itself goes to the log."""
    return response(500, "the service failed on this request; its log says why")


def answer_to(error: Exception) -> Response:
    """The answer to a request with one of the errors ANSWERED."""
    if isinstance(error, RequestValidationError):
        return _bad_parameter(error.errors()[0])
    if isinstance(error, Rejected):
        return response(422, str(error), Fault(error.pointer, error.reason))
    unknown = isinstance(error, UnknownModel | UnknownCandidate)
    return response(getattr(error, "status", 404 if unknown else 503), str(error))


def check_parameters(names: Iterable[str], known: Collection[str]) -> None:
    """Raise RequestValidationError if the route does not have a parameter of one of these names."""
    for name in names:
        if name not in known:
            detail = f"there is no such parameter{did_you_mean(name, known)}"
            raise RequestValidationError([{"loc": ("query", name), "type": "extra_forbidden", "msg": detail}])


def _bad_parameter(error: Any) -> Response:
    where = error["loc"][-1]
    reasons = {"greater": "out-of-range", "less": "out-of-range", "extra": "unknown-parameter"}
    reason = reasons.get(error["type"].partition("_")[0], "wrong-type")
    detail = f"'{where}': {error['msg']}"
    if expected := EXPECTED.get(error["type"]):
        got = "something else" if error["input"] else "nothing"
        detail = f"?{where}= must be {expected.format_map(error.get('ctx', {}) | {'got': got})}"
    return response(422, detail, Fault(f"?{where}", reason))


def install_handlers(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document."""

    async def _answered(_request: Request, error: Exception) -> Response:
        return answer_to(error)

    for kind in ANSWERED:
        app.add_exception_handler(kind, _answered)

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if (allowed := headers.get("Allow")) and "GET" in allowed and "HEAD" not in allowed:
            headers["Allow"] = f"{allowed}, HEAD"  # `Application` answers HEAD as GET
        known = {404: NOTHING_SERVED, 405: f"this path takes {headers.get('Allow', 'other methods')}"}
        detail = known.get(error.status_code) or HTTPStatus(error.status_code).description or error.detail
        return response(error.status_code, detail, headers=headers)

    @app.exception_handler(Exception)
    async def _defect(_request: Request, _error: Exception) -> Response:
        return defect()
