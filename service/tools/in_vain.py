"""What is set of a model's events and finds nothing in its records: a pointer, a pattern, a value of `where`."""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from service.learning.events.careful_reader import same
from service.learning.events.json_pointer import parse_pointer
from service.learning.identity import Places
from service.settings.model import EventSettings, ModelSettings
from service.tools.profile import at, flat, shown
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
    if places.only or places.without:
        names = _names(places, meant)
        for setting, patterns in (("only", places.only), ("without", places.without)):
            for pattern in patterns:
                if not any(map(re.compile(fnmatch.translate(pattern)).match, names)):
                    some = ", ".join([*names][:SHOWN])
                    lines.append(
                        f"event.{setting}: {shown(pattern)} matches no feature of {of}, such as {some or 'none'}"
                    )
    return lines


def _names(places: Places, objects: Iterable[object]) -> dict[str, None]:
    """The names that patterns are held against, in the order in which they came; of a list its positions' too."""
    root = parse_pointer(places.features)
    others = [parse_pointer(one) for one in (places.label, places.weight, places.id) if one]
    taken = {one[len(root) :] for one in others if one[: len(root)] == root}
    names: dict[str, None] = {}
    for record in objects:
        features = at(record, root)
        for here, value in flat(features) if isinstance(features, dict) else ():
            if here not in taken:
                names[".".join(here)] = None
                for i in range(len(value) if isinstance(value, list) else 0):
                    names[f"{'.'.join(here)}.{i}"] = None
    return names
