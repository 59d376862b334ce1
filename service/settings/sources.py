"""The source of each setting: a flag, a variable of the environment, the file, or its default."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Sources:
    """The values of each source, as tables within tables. The first source that has a value wins."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path()

    def merged(self) -> dict[str, Any]:
        """The settings of all sources."""
        return _merge(self.file, _merge(self.environment, self.flags))

    def of(self, where: Sequence[str]) -> tuple[Sequence[str], str]:
        """The place of a setting or table, and its source. A model's may be in `[model]`, which is for all models."""
        for place in (where, ("model", *where[2:])) if len(where) > 1 and where[0] == "models" else (where,):
            if _within(self.flags, place) is not None:
                return place, "flag"
            if _within(self.environment, place) is not None:
                return place, f"environment {_variable(place)}"
            if _within(self.file, place) is not None:
                return place, str(self.path)
        return where, "default"


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both; what is in both is a table of both, or else the value of `over`."""
    pairs = {name: (under[name], over[name]) for name in under.keys() & over.keys()}
    tables = {name: _merge(*pair) for name, pair in pairs.items() if all(isinstance(value, dict) for value in pair)}
    return {**under, **over, **tables}


def _variable(place: Sequence[str]) -> str:
    """The variable that a setting is read from: its own, or that of a table around it, which is JSON."""
    names = ["PERCEPTRON_" + "__".join(place[:depth]).upper() for depth in range(len(place), 0, -1)]
    variables = {name.upper() for name in os.environ}
    return next((name for name in names if name in variables), f"{names[0]}__…")


def _within(values: Any, place: Sequence[str]) -> Any:
    for name in place:
        values = values.get(name) if isinstance(values, dict) else None
    return values
