"""Errors over HTTP, as RFC 9457 problem documents. What a client sent is never echoed."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.errors import PerceptronError, Rejected


class Problem(PerceptronError):
    """A request that cannot be answered: a status, one line, and the members at fault."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.status, self.errors = status, errors or []


def invalid(rejected: Rejected) -> Problem:
    """A request body that breaks the format."""
    return Problem(422, str(rejected), [{"pointer": rejected.pointer, "reason": rejected.reason}])


def response(status: int, detail: str, errors: list[dict[str, str]] | None = None, headers: Any = None) -> JSONResponse:
    """A problem document."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "errors": errors or [],
    }
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document."""

    @app.exception_handler(Problem)
    async def _problem(_request: Request, problem: Problem) -> JSONResponse:
        retry = {"retry-after": "1"} if problem.status == 503 else None
        return response(problem.status, str(problem), problem.errors, retry)

    @app.exception_handler(RequestValidationError)
    async def _parameter(_request: Request, invalid: RequestValidationError) -> JSONResponse:
        first = invalid.errors()[0]
        where = first["loc"][-1]
        reason = "out-of-range" if first["type"].startswith(("greater", "less")) else "wrong-type"
        return response(422, f"'{where}': {first['msg']}", [{"pointer": f"?{where}", "reason": reason}])

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        return response(
            error.status_code, HTTPStatus(error.status_code).description or error.detail, headers=error.headers
        )

    @app.exception_handler(Exception)
    async def _defect(_request: Request, _error: Exception) -> JSONResponse:
        return response(500, "the service failed on this request; its log says why")
