"""`perceptron config`: what is set, and where it came from."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from service.settings.load import Settings
from service.settings.section import masked


def show_config(settings: Settings, as_json: bool) -> None:
    """Print each setting, its value and its origin; a password is masked."""
    rows = [
        (".".join(at), masked(value) if at == ["redis", "url"] else value, settings.origins.of(at)[1])
        for at, value in _flat(settings)
    ]
    if as_json:
        typer.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}))
        return
    width = max(len(path) for path, _, _ in rows)
    for path, value, origin in rows:
        text = "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{path:{width}}  {text:<36} {origin}")


def _flat(settings: Settings) -> Iterator[tuple[Sequence[str], Any]]:
    def walk(value: Any, at: Sequence[str]) -> Iterator[tuple[Sequence[str], Any]]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from walk(inner, [*at, name])
        else:
            yield at, value

    yield from walk(settings.model_dump(mode="json", exclude={"model"}), [])
