"""`perceptron config`: what is set, and where it came from."""

import json
from typing import Any

import typer

from service.settings.load import Settings
from service.settings.section import masked
from service.tools.tables import print_tables


def show_config(settings: Settings, as_json: bool) -> None:
    """Print each setting, its value and its origin; a password is masked."""
    rows = [
        (".".join(path), masked(value) if path == ("redis", "url") else value, settings.origins.find_source(path)[1])
        for path, value in _flat(settings.model_dump(mode="json", exclude={"model"}))
    ]
    if as_json:
        return typer.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}))
    print_tables({("setting", "value", "origin"): [(path, _text(value), origin) for path, value, origin in rows]})


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """The values of nested tables, each with its path of names."""
    if isinstance(value, dict) and value:
        return [row for name, inner in value.items() for row in _flat(inner, (*path, name))]
    return [(path, value)]
