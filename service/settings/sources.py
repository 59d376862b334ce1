"""The source of each setting: a flag, a variable of the environment, the file, or its default."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class SettingSources(NamedTuple):
    """The values of each source, as tables within tables. The first source that has a value wins."""

    flags: Mapping[str, Any] = {}
    environment: Mapping[str, Any] = {}
    file: Mapping[str, Any] = {}
    path: Path = Path()

    def merged(self) -> dict[str, Any]:
        """The settings of all sources."""
        return _merge(self.file, _merge(self.environment, self.flags))

    def find_source(self, where: Sequence[str]) -> tuple[Sequence[str], str]:
        """The place of a setting or table, and its source. A model's may be in `[model]`, which is for all models."""
        for place in (where, ("model", *where[2:])) if len(where) > 1 and where[0] == "models" else (where,):
            environment = f"environment {_variable(place)}"
            for source, values in (("flag", self.flags), (environment, self.environment), (str(self.path), self.file)):
                if _within(values, place) is not None:
                    return place, source
        return where, "default"


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both; a name that both have is a merged table if both values are tables, else the value of `over`."""
    shared = [name for name, value in over.items() if isinstance(value, dict) and isinstance(under.get(name), dict)]
    return {**under, **over, **{name: _merge(under[name], over[name]) for name in shared}}


def _variable(place: Sequence[str]) -> str:
    """The variable that a setting is read from: its own, or that of a table around it, which is JSON."""
    names = ["PERCEPTRON_" + "__".join(place[:depth]).upper() for depth in range(len(place), 0, -1)]
    variables = {name.upper() for name in os.environ}
    return next((name for name in names if name in variables), f"{names[0]}__…")


def _within(values: Any, place: Sequence[str]) -> Any:
    for name in place:
        values = values.get(name) if isinstance(values, dict) else None
    return values
