"""Who said a setting: a flag, a variable of the environment, the file, or nobody."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Origins:
    """All that was said, by those who said it."""

    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    file: Mapping[str, Any]
    path: Path

    def of(self, where: Sequence[str]) -> tuple[Sequence[str], str]:
        """Where this setting, or table, is written, and by whom. A model's may stand in `[model]`, for all of them."""
        for place in (where, ("model", *where[2:])) if len(where) > 1 and where[0] == "models" else (where,):
            if _within(self.flags, place) is not None:
                return place, "flag"
            if variable := self._variable(place):
                return place, f"environment {variable}"
            if _within(self.file, place) is not None:
                return place, str(self.path)
        return where, "default"

    def _variable(self, place: Sequence[str]) -> str | None:
        """The variable that has it: its own, or that of a table, whole as JSON; or those within it."""
        known = {name.upper(): value for name, value in self.environment.items()}
        for depth in range(1, len(place) + 1):
            name = f"PERCEPTRON_{'__'.join(place[:depth])}".upper()
            if name in known and (depth == len(place) or _within(_table(known[name]), place[depth:]) is not None):
                return name
        return f"{name}__…" if place and any(other.startswith(f"{name}__") for other in known) else None


def _table(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return None


def _within(said: Any, place: Sequence[str]) -> Any:
    for name in place:
        said = said.get(name) if isinstance(said, dict) else None
    return said
