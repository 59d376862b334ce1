"""Errors over HTTP, as RFC 9457 problem documents. No value that a client sent is echoed."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from msgspec import UNSET, Meta, UnsetType
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.errors import BadRecords, NotFound, Rejected, SnapshotDamaged, Unanswerable
from service.text import format_error


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """A member or query parameter at fault."""

    pointer: Annotated[str, Meta(examples=["/features/age"])]
    reason: Annotated[str, Meta(examples=["wrong-type"])]


class StoredRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Where a record is stored."""

    topic: Annotated[str, Meta(examples=["clicks"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[1234])]


class Problem(msgspec.Struct, forbid_unknown_fields=True):
    """A problem document (RFC 9457)."""

    type: Annotated[str, Meta(examples=["about:blank"])]
    title: Annotated[str, Meta(examples=["Unprocessable Entity"])]
    status: Annotated[int, Meta(examples=[422])]
    detail: Annotated[str, Meta(examples=['feature "age" must be a number, got a string'])]
    errors: list[Fault]
    records: list[StoredRecord | None] | UnsetType = UNSET
    """Where each record of a post is stored, if not all are; null for one that may be stored later, or never."""


class Unstored(Exception):
    """Not all records of a post are stored."""

    def __init__(self, why: str, places: list[StoredRecord | None]) -> None:
        super().__init__(why)
        self.places = places


CLOSE = {"connection": "close"}
"""The header of an answer after which the connection ends, since the rest of the body is not read."""
HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}, 408: CLOSE, 413: CLOSE}
NOTHING_SERVED = "nothing is served at this path; /docs lists the paths"
STATUSES: dict[type, int] = {NotFound: 404, Unanswerable: 503, SnapshotDamaged: 503}
"""The status of an error whose message is the detail."""
PARAMETER_REASONS = {"greater": "out-of-range", "less": "out-of-range", "extra": "unknown-parameter"}
"""The reason of a bad parameter, by the first word of pydantic's error; any other is a wrong type."""


def response(
    status: int, detail: str, *faults: Fault, headers: Mapping[str, str] | None = None, records: Any = UNSET
) -> Response:
    """A response with a problem document."""
    headers = dict(headers or {}) | HEADERS.get(status, {})
    problem = Problem("about:blank", HTTPStatus(status).phrase, status, detail, list(faults), records)
    return Response(msgspec.json.encode(problem), status, headers, media_type="application/problem+json")


async def answer_to(_request: Any, error: Exception) -> Response:
    """The answer to a request that ended with this error. Any error that is not expected is a defect: status 500."""
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        if (allowed := headers.get("Allow")) and "GET" in allowed and "HEAD" not in allowed:
            headers["Allow"] = f"{allowed}, HEAD"  # `Application` answers HEAD as GET
        details = {404: NOTHING_SERVED, 405: f"this path takes {headers.get('Allow', 'other methods')}"}
        return response(error.status_code, details.get(error.status_code, error.detail), headers=headers)
    if isinstance(error, RequestValidationError | ValidationError):
        fault: Any = error.errors()[0]
        where, reason = f"?{fault['loc'][-1]}", PARAMETER_REASONS.get(fault["type"].partition("_")[0], "wrong-type")
        detail = format_error(fault).partition(", got ")[0]  # without the value that was sent
        if reason == "unknown-parameter":
            detail = "there is no such parameter; /docs lists them"
        return response(422, f"{where}: {detail}", Fault(where, reason))
    if isinstance(error, Unstored):
        return response(503, str(error), records=error.places)
    if isinstance(error, BadRecords | Rejected):
        faults = [error] if isinstance(error, Rejected) else error.faults
        return response(422, str(error), *(Fault(fault.pointer, fault.reason) for fault in faults))
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return response(status, str(error))
    return response(500, "the service failed on this request; its log says why")


HANDLERS: Any = dict.fromkeys((HTTPException, RequestValidationError, Rejected, *STATUSES, Exception), answer_to)
"""FastAPI's handlers of errors. An error that only `Exception` matches is answered, then raised again and logged."""
