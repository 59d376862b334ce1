"""Requests to a running service: `perceptron healthcheck`, and `perceptron predict` for the lines of a file."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
import typer

from service.credentials import failure_reason, opener, trust_only
from service.errors import ConfigurationError, DataError, DependencyError, PerceptronError, Rejected
from service.learning.identity import Identity, Places, as_text
from service.settings.load import Settings
from service.text import host_and_port, printable, quantity
from service.tools.files import Events, JsonLines, in_batches, raise_bad_line

TIMEOUT = 30.0
REQUEST_LINES = 1000
"""Lines of a request for predictions."""


def _service_url(settings: Settings, url: str | None) -> str:
    """The URL of the service: `url`, which may leave out `http://`, or what its settings say."""
    if url:
        full = url if "://" in url else f"http://{url}"
        if "@" in url or not full.startswith(("http://", "https://")):  # errors show it, so it may have no password
            raise ConfigurationError("--url: expected http://HOST:PORT or https://HOST:PORT, without a login")
        return full.rstrip("/")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.http.host, settings.http.host)  # noqa: S104
    return f"{settings.http.scheme}://{host_and_port(host, settings.http.port)}"


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


def predict_lines(
    settings: Settings, model: str, file: str, url: str | None, explain: bool, top: int | None, as_json: bool
) -> None:
    """Print a prediction for each line of `file`, which is `{"features": …}` or the features alone.

    With three labels and more, `top` is the number of scores to print. If the model's settings have another place for
    features, each line is a whole record of its topic.
    """
    events = Events(file, JsonLines(Identity(), None), Identity(), check=False)
    path = f"/v1/models/{model}/predict?explain={str(explain).lower()}{f'&top={top}' if top else ''}"
    whole = settings.model_settings(model).identity().event.features != Places().features

    def predictions_of(values: list[Any]) -> Any:
        instances = [{"features": each.get("features", each) if isinstance(each, dict) else each} for each in values]
        request = {"events": values} if whole else {"instances": instances}
        return request_json(settings, url, path, request)["predictions"]

    number = 0
    for batch in in_batches(_values(events), min(REQUEST_LINES, settings.http.max_instances)):
        for prediction in _answers(batch, predictions_of, events.name):
            number += 1
            _show(prediction, top is not None, as_json)
    if not number:
        raise DataError(f"{events.name}: no line to predict")


def _answers(batch: list[tuple[int, Any]], predictions_of: Callable[[list[Any]], Any], name: str) -> Iterator[Any]:
    """The predictions for these lines. If a line is refused: those for the lines before it, then DataError."""
    try:
        predictions = predictions_of([value for _, value in batch])
    except Rejected as refused:
        # The pointer of the problem names the line.
        parts = refused.pointer.split("/")
        bad = int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 0
        if bad:
            yield from _answers(batch[:bad], predictions_of, name)
        raise DataError(f"{name}, line {batch[bad][0]}: {refused}") from None
    yield from predictions


def _show(prediction: dict[str, Any], ranked: bool, as_json: bool) -> None:
    if as_json:
        return typer.echo(json.dumps(prediction, ensure_ascii=False))
    lacks = [quantity(n, f"{kind} feature") for kind in ("unknown", "missing") if (n := prediction[f"{kind}_features"])]
    note = f"\t({', '.join(lacks)})" if lacks else ""
    probability = f"\t{prediction['probability']:g}" if "probability" in prediction else ""
    typer.echo(f"{as_text(prediction['label'])}\t{prediction['score']:zg}{probability}{note}")
    for each in prediction.get("scores", ()) if ranked else ():
        typer.echo(f"\t{as_text(each['label'])}\t{each['score']:zg}")
    if "runner_up" in prediction:
        typer.echo(f"\tahead of {as_text(prediction['runner_up'])}:")
    for c in prediction.get("contributions", ()):
        scaled = f" (scaled {c['scaled']:zg})" if c.get("scaled", c["value"]) != c["value"] else ""
        typer.echo(f"\t{c['product']:+zg}\t{printable(c['name'])}\t{c['value']:zg}{scaled} x {c['weight']:zg}")


def _values(events: Events) -> Iterator[tuple[int, Any]]:
    """The lines that are not empty, parsed, with their numbers; raises DataError."""
    for line in events.lines(raise_bad_line):
        try:
            value = msgspec.json.decode(line.value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            reason = f"not JSON: {error} (predict reads JSON lines, not CSV)"
            raise DataError(f"{events.name}, line {line.number}: {reason}") from None
        yield line.number, value
