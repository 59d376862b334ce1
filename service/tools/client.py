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
from service.errors import ConfigurationError, DataError, DependencyError, PerceptronError, Rejected
from service.settings.load import Settings

TIMEOUT = 30.0


def _service_url(settings: Settings, url: str | None) -> str:
    """The URL of the service: `url`, which may leave out `http://`, or what its settings say."""
    if url:
        full = url if "://" in url else f"http://{url}"
        if "@" in url or not full.startswith(("http://", "https://")):  # errors show it, so it may have no password
            raise ConfigurationError("--url: expected http://HOST:PORT or https://HOST:PORT, without a login")
        return full.rstrip("/")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.http.host, settings.http.host)  # noqa: S104
    return f"{settings.http.scheme}://{host}:{settings.http.port}"


def request_json(settings: Settings, address: str | None, path: str, body: Any = None) -> Any:
    """The JSON answer to a POST of `body`, or to a GET, of the service at `address`, else where the settings say.

    Raises Rejected, DataError, DependencyError, and ConfigurationError for a bad URL.
    """
    url, http_settings = _service_url(settings, address) + path, settings.http
    headers, data = {"content-type": "application/json"}, None
    if body is not None:
        data = json.dumps(body).encode()
        if token := http_settings.token:
            headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the user's address
    # A service at the settings' address must show the settings' certificate; any other, one that the system trusts.
    trust = trust_only(http_settings.ssl_certfile) if http_settings.ssl_certfile and not address else None
    try:
        with opener(trust).open(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem: dict[str, Any] = {"detail": error.reason, "errors": []}
        with suppress(ValueError):
            problem |= json.load(error)
        if error.code == HTTPStatus.UNPROCESSABLE_ENTITY:
            fault = problem["errors"][0] if problem["errors"] else {"reason": "", "pointer": ""}
            raise Rejected(fault["reason"], problem["detail"], fault["pointer"]) from None
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
