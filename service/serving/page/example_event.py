"""The newest event that this process learned, for the form that asks for a prediction."""

from typing import Any

import msgspec
from msgspec import UNSET

from service.errors import Rejected
from service.learning.events.flatten import Flattener
from service.learning.events.json_pointer import Path
from service.learning.events.json_values import Pairs
from service.learning.learner import Learner

MAX_EVENT_BYTES = 16 << 10
"""Bytes of JSON; a larger event is not shown."""


def newest_event(learner: Learner) -> msgspec.Raw | None:
    """The features of the newest event that the model reads, as JSON; None if there is no event to show."""
    last, flattener = learner.last_events, learner.flattener
    if last.record is None:
        return None
    try:
        values = last.record_format.parse(last.record, (flattener.path,), learner.identity)
        features = _read(flattener, flattener.exclude(values.whole(0, learner.identity.max_features, "")))
    except Rejected:
        return None
    text = msgspec.json.encode(features)
    return msgspec.Raw(text) if len(text) <= MAX_EVENT_BYTES else None


def _read(flattener: Flattener, value: Any, path: Path = ()) -> Any:
    """The parts of a value that the model reads, or UNSET. A null stays: in another event it may be a value."""
    if value.__class__ is Pairs:
        members = {name: _read(flattener, member, (*path, name)) for name, member in value}
        return {name: member for name, member in members.items() if member is not UNSET}
    name, patterns = ".".join(path), flattener.patterns
    names = [name]
    if isinstance(value, list):
        names += [f"{name}.{i}" for i in range(len(value))]
        value = [item if isinstance(item, bool | int | float | str) else None for item in value]
    elif isinstance(value, str) and flattener.identity.text == "ignore":
        return UNSET
    if path and patterns is not None and (patterns.excluded(name) or not any(map(patterns.included, names))):
        return UNSET
    return value if isinstance(value, bool | int | float | str | list) else None
