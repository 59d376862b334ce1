"""An event that was learned here, for the form that asks for a prediction: sent to who fills it in."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

import msgspec

from service.errors import Rejected
from service.learning.events.careful_reader import values_of
from service.learning.events.content_types import DoubleVector, doubles
from service.learning.events.flatten import Flattener
from service.learning.events.json_pointer import Path
from service.learning.events.json_values import Pairs
from service.learning.learner import Learner

MOST_FIELDS = 40


class Event(msgspec.Struct):
    """The newest that this process read."""

    features: Any
    """As its record had them; None where none was read, or it has no such form any more."""
    fields: list[Path] | None
    """Where in it the values are that the model reads, a list as one; None without an event, and of many."""

    @classmethod
    def of(cls, learner: Learner) -> Self:
        """That of a model."""
        features = _features(learner)
        if features is None:
            return cls(None, None)
        fields = list(islice(_fields(learner.flattener, features), MOST_FIELDS + 1))
        return cls(features, fields if len(fields) <= MOST_FIELDS else None)


def _features(learner: Learner) -> Any:
    """Those of an event that was seen."""
    raw, flattener = learner.seen.record, learner.flattener
    if raw is None:
        return None
    if raw.__class__ is DoubleVector:
        return list(doubles(raw)[:-1])
    try:
        value = values_of(raw, (flattener.path,)).whole(0, learner.identity.max_features, "")
        value = flattener.exclude(value)
    except Rejected:
        return None
    return _plain(value)


def _fields(flattener: Flattener, value: Any, path: Path = ()) -> Iterator[Path]:
    """Where the values are that the model reads; what is null might be one."""
    if isinstance(value, dict) or not path:
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _fields(flattener, one, (*path, str(name)))
        return
    patterns, name = flattener.patterns, ".".join(path)
    names = [name, *(f"{name}.{i}" for i in range(len(value)))] if isinstance(value, list) else [name]
    ignored = isinstance(value, str) and flattener.identity.text == "ignore"
    if not ignored and (patterns is None or (not patterns.excluded(name) and any(map(patterns.included, names)))):
        yield path


def _plain(value: Any) -> Any:
    """A parsed value as JSON has it; what JSON has no word for is left out."""
    if value.__class__ is Pairs:
        value = dict(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | float | str) else None
