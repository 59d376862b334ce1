"""Requests to a running service, and `perceptron healthcheck`, which is one."""

import http.client
import json
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import typer

from service.credentials.http import failure_reason, opener
from service.credentials.tls import trust_only
from service.errors import ConfigurationError, DataError, DependencyError, PerceptronError
from service.settings.load import Settings

TIMEOUT = 30.0


def _service_url(settings: Settings, url: str | None) -> str:
    """The URL of the service: `url`, which may leave out `http://`, or what its settings say."""
    if url:
        full = url if "://" in url else f"http://{url}"
        if "@" in url or not full.startswith(("http://", "https://")):  # it is in errors, so it has no password
            raise ConfigurationError("--url: expected http://HOST:PORT, without a name or a password")
        return full.rstrip("/")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.http.host, settings.http.host)  # noqa: S104
    return f"{settings.http.scheme}://{host}:{settings.http.port}"


class RequestRefused(Exception):
    """The service refused the value at `pointer` of the request."""

    def __init__(self, detail: str, pointer: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


def request_json(settings: Settings, url: str | None, path: str, body: Any = None) -> Any:
    """The JSON answer of the service at `url`, or of the settings' own, to a POST of `body`, or to a GET.

    Raises RequestRefused, DataError and DependencyError.
    """
    # The settings' own service must show the very certificate of its settings; another one any that the system trusts.
    trust = trust_only(settings.http.ssl_certfile) if settings.http.ssl_certfile and not url else None
    url = _service_url(settings, url) + path
    headers, data = {"content-type": "application/json"}, None
    if body is not None:
        data = json.dumps(body).encode()
        headers |= {"authorization": f"Bearer {settings.http.token}"} if settings.http.token else {}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the user's address
    try:
        with opener(trust).open(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem: dict[str, Any] = {"detail": error.reason, "errors": []}
        with suppress(ValueError):
            problem |= json.load(error)
        if error.code == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise RequestRefused(
                problem["detail"], problem["errors"][0]["pointer"] if problem["errors"] else ""
            ) from None
        raise DataError(f"{url}: {error.code} {problem['detail']}") from None
    except OSError as error:
        raise DependencyError(f"the service at {url}: {failure_reason(error)}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise DependencyError(f"the service at {url}: the answer is not HTTP with JSON: {error}") from None


def check_health(settings: Settings, url: str | None, ready: bool) -> None:
    """Ask a service whether it is alive, or ready; raises PerceptronError, which is exit 1, when it is not."""
    try:
        request_json(settings, url, "/readyz" if ready else "/livez")
    except DependencyError as error:
        raise PerceptronError(str(error)) from None
    typer.echo("ready" if ready else "alive")
