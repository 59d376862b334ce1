"""`perceptron config`: what is set, and where it came from."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import typer

from service.settings.load import Settings, variable_of


def show_config(settings: Settings, flags: set[str], as_json: bool) -> None:
    """Print each setting, its value and its origin; a password is masked."""
    file = settings.file
    written = tomllib.loads(file.read_text()) if file.is_file() else {}
    rows = [(path, _masked(path, value), _origin(path, written, file, flags)) for path, value in _flat(settings)]
    if as_json:
        import json

        typer.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}))
        return
    width = max(len(path) for path, _, _ in rows)
    for path, value, origin in rows:
        typer.echo(f"{path:{width}}  {'-' if value is None else value!s:<36} {origin}")


def _flat(settings: Settings) -> Iterator[tuple[str, Any]]:
    def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from walk(inner, f"{path}.{name}" if path else name)
        else:
            yield path, value

    yield from walk(settings.model_dump(mode="json", exclude={"model"}), "")


def _origin(path: str, written: Any, file: Path, flags: set[str]) -> str:
    if path in flags:
        return "flag"
    parts = path.split(".")
    # A model's setting may come from [model], the defaults of all.
    candidates = [parts] + ([["model", *parts[2:]]] if parts[0] == "models" and len(parts) > 2 else [])
    if variable := variable_of(parts):
        return f"environment {variable}"
    for names in candidates:
        found = written
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return str(file)
    return "default"


def _masked(path: str, value: Any) -> Any:
    if path != "redis.url":
        return value
    parts = urlsplit(value)
    if not (parts.query or parts.fragment or "@" in parts.netloc):
        return value
    given, at, address = parts.netloc.rpartition("@")
    user, colon, _ = given.partition(":")
    # Its options may be passwords, and what is behind ? or # the rest of one that is not quoted.
    more = {name: "***" for name in ("query", "fragment") if getattr(parts, name)}
    netloc = f"{user if colon else ''}{colon}***@{address}" if at else address
    return urlunsplit(parts._replace(netloc=netloc, **more))
