"""`perceptron predict` and `perceptron healthcheck`: a running service, asked over HTTP."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
import typer

from service.credentials.certificate import trusting
from service.credentials.http import opener, why_not
from service.errors import ConfigurationError, DataError, DependencyError, PerceptronError
from service.learning.identity import Identity, Places, as_text
from service.settings.load import Settings
from service.text import on_a_line

BATCH = 1000
"""Lines of a request."""
TIMEOUT = 30.0

Line = tuple[int, Any]
"""Its number, and what it holds."""


def address(settings: Settings, url: str | None) -> str:
    """Where the service is: `url`, which may leave out `http://`, or what its settings say."""
    if url:
        full = url if "://" in url else f"http://{url}"
        if "@" in url:  # it is said in errors
            raise ConfigurationError("--url: expected http://HOST:PORT, without a name or a password")
        if not full.startswith(("http://", "https://")):
            raise ConfigurationError(f"--url {url}: expected http://HOST:PORT")
        return full.rstrip("/")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.http.host, settings.http.host)  # noqa: S104
    return f"{settings.http.scheme}://{host}:{settings.http.port}"


def trusted(settings: Settings, url: str | None) -> ssl.SSLContext | None:
    """Whom to trust there: of our own settings' service its very certificate; else whom the system trusts."""
    return trusting(settings.http.ssl_certfile) if settings.http.ssl_certfile and not url else None


def predict(
    settings: Settings, topic: str, file: str, url: str | None, explain: bool, top: int | None, as_json: bool
) -> None:
    """Print a prediction for each line of `file`: `{"features": …}` or the features alone; of classes the `top` scores.

    Where the model's settings say that features stand elsewhere, lines are whole records of its topic.
    """
    from service.tools.formats.formats import in_batches

    name = "standard input" if file == "-" else file
    at = f"{address(settings, url)}/v1/models/{topic}/predict"
    asked = ["explain=true"] * explain + [f"top={top}"] * (top is not None)
    at += f"?{'&'.join(asked)}" if asked else ""
    trust = trusted(settings, url)
    whole = settings.of(topic).identity().event.features != Places().features
    number = 0

    def ask(values: list[Any]) -> Any:
        request = {"events": values} if whole else {"instances": [*map(_instance, values)]}
        return _ask(at, trust, request, settings.http.token)["predictions"]

    for batch in in_batches(_values(file), min(BATCH, settings.http.max_instances)):
        for prediction in _answers(batch, ask, name):
            number += 1
            _show(prediction, explain, top is not None, as_json)
    if not number:
        raise DataError(f"{name}: no line to predict")


def _answers(batch: list[Line], ask: Callable[[list[Any]], Any], name: str) -> Iterator[Any]:
    """The predictions of these lines; where one is refused, those before it first. Raises DataError."""
    try:
        predictions = ask([value for _, value in batch])
    except _Refused as refused:
        # The problem's pointer says which it is about.
        parts = refused.pointer.split("/")
        bad = int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 0
        if bad:
            yield from _answers(batch[:bad], ask, name)
        raise DataError(f"{name}, line {batch[bad][0]}: {refused}") from None
    yield from predictions


def _show(prediction: dict[str, Any], explain: bool, ranked: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(prediction, ensure_ascii=False))
        return
    unknown = prediction["unknown_features"]
    note = f"\t({unknown} unknown feature{'s' * (unknown != 1)})" if unknown else ""
    probability = f"\t{prediction['probability']:g}" if "probability" in prediction else ""
    typer.echo(f"{as_text(prediction['label'])}\t{prediction['score']:zg}{probability}{note}")
    for one in prediction.get("scores", ()) if ranked else ():
        typer.echo(f"\t{as_text(one['label'])}\t{one['score']:zg}")
    if "runner_up" in prediction:
        typer.echo(f"\tahead of {as_text(prediction['runner_up'])}:")
    for c in prediction["contributions"] if explain else ():
        met = f" (scaled {c['scaled']:zg})" if c.get("scaled", c["value"]) != c["value"] else ""
        typer.echo(f"\t{c['product']:+zg}\t{on_a_line(c['name'])}\t{c['value']:zg}{met} x {c['weight']:zg}")


def _instance(value: Any) -> Any:
    return {"features": value["features"] if isinstance(value, dict) and "features" in value else value}


def _values(file: str) -> Iterator[Line]:
    """The lines that hold something."""
    from service.tools.formats.formats import Events, raise_bad_line
    from service.tools.formats.readers import JsonLines

    events = Events(file, JsonLines(Identity(), None), Identity(), keyed=False, check=False)
    for line in events.lines(raise_bad_line):
        try:
            value = msgspec.json.decode(line.value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            said = f"not JSON: {error} (predict reads JSON lines, no CSV)"
            raise DataError(f"{events.name}, line {line.number}: {said}") from None
        yield line.number, value


class _Refused(Exception):
    def __init__(self, detail: str, pointer: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


def _ask(url: str, trust: ssl.SSLContext | None, body: Any = None, token: str | None = None) -> Any:
    """The JSON answer to a POST of `body`, or to a GET."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the user's address
    try:
        with opener(trust).open(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem: dict[str, Any] = {"detail": error.reason, "errors": []}
        with suppress(ValueError):
            problem |= json.load(error)
        if error.code == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise _Refused(problem["detail"], problem["errors"][0]["pointer"] if problem["errors"] else "") from None
        raise DataError(f"{url}: {error.code} {problem['detail']}") from None
    except OSError as error:
        raise DependencyError(f"the service at {url}: {why_not(error)}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise DependencyError(f"the service at {url}: the answer is not HTTP with JSON: {error}") from None


def healthcheck(settings: Settings, url: str | None, ready: bool) -> None:
    """Ask a service whether it is alive, or ready; raises PerceptronError, which is exit 1, when it is not."""
    try:
        _ask(f"{address(settings, url)}/{'readyz' if ready else 'livez'}", trusted(settings, url))
    except DependencyError as error:
        raise PerceptronError(str(error)) from None
    typer.echo("ready" if ready else "alive")
