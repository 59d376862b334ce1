"""What is set of a model's events and finds nothing in its records: a pointer, a pattern, a value of `where`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from service.errors import Rejected
from service.learning.events.careful_reader import same, values_of
from service.learning.events.flatten import Flattener
from service.learning.events.json_pointer import parse_pointer
from service.learning.identity import Places
from service.settings.model import EventSettings, ModelSettings
from service.tools.profile import at, shown
from service.tools.sample import read, records

SHOWN = 4


def in_vain(settings: ModelSettings, values: Sequence[bytes | None]) -> list[str]:
    """A line for each; none where nothing is set of events. A `weight` and an `id` that are not set may be missing."""
    places, default = settings.event.places(), Places()
    objects = [record for record in map(read, values) if record is not None]
    if not objects or settings.event == EventSettings():
        return []
    of = f"the {records(len(objects))} that were looked at"
    lines, meant = [], objects
    for pointer, wanted in places.where.items():
        found = [at(record, parse_pointer(pointer)) for record in objects]
        if not any(value is not None for value in found):
            lines.append(f"event.where: {pointer} is in none of {of}, so none is learned")
        elif not any(same(value, one) for value in found for one in wanted):
            seen = ", ".join(value for value, _ in Counter(map(shown, found)).most_common(SHOWN))
            lines.append(
                f"event.where: none of {of} has {pointer} = {' or '.join(map(shown, wanted))}; there are {seen}"
            )
        meant = [record for record in meant if any(same(at(record, parse_pointer(pointer)), one) for one in wanted)]
    if not meant:
        return lines
    for part in ("features", "label", "weight", "id"):
        set_: str | None = getattr(places, part)
        if not set_ or (part in ("weight", "id") and set_ == getattr(default, part)):
            continue
        if all(at(record, parse_pointer(set_)) is None for record in meant):
            lines.append(f"event.{part}: {set_} is in none of {of}")
    for setting, patterns in (("only", places.only), ("without", places.without)):
        for pattern in patterns:
            if not _features(settings, (pattern,), values):
                some = ", ".join(dict.fromkeys(name.partition("=")[0] for name in _features(settings, (), values)))
                lines.append(f"event.{setting}: {shown(pattern)} matches no feature of {of}, such as {some or 'none'}")
    return lines


def _features(settings: ModelSettings, only: tuple[str, ...], values: Iterable[bytes | None]) -> list[str]:
    """The first names of the first event that has a feature which these patterns select."""
    event = settings.event.model_copy(update={"only": only, "without": ()})
    flattener = Flattener(settings.model_copy(update={"event": event}).identity())
    for value in values:
        with suppress(Rejected):
            whole = values_of(value or b"", (flattener.path,)).whole(0, settings.max_features, event.features)
            if features := flattener.of(whole, event.features):
                return [*map(str, features)][:SHOWN]
    return []
