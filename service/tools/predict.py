"""`perceptron predict`: the predictions of a running service for the lines of a file."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import typer

from service.errors import DataError, Rejected
from service.learning.identity import Identity, Places, as_text
from service.settings.load import Settings
from service.text import printable, quantity
from service.tools.client import request_json
from service.tools.formats.formats import Events, in_batches, raise_bad_line
from service.tools.formats.readers import JsonLines

REQUEST_LINES = 1000
"""Lines of a request."""


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
