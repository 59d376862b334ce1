"""The members of a sample's records: their kinds and values, and why one makes no good feature."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from service.errors import Rejected
from service.learning.events.flatten import MAX_OBJECT_DEPTH, Flattener
from service.learning.events.json_pointer import Path
from service.learning.events.json_values import Pairs, parse, type_name
from service.learning.identity import Identity
from service.text import short_json
from service.tools.formats.readers import at

MAX_MEMBERS = 10_000
ENOUGH_VALUES = 20
"""With fewer values, the number of different ones says nothing."""

_DATE = re.compile(r"(\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[/.]\d\d?[/.]\d{4})([T ].*)?")
_ID_NAME = re.compile(r"(.*[_.-])?(id|uuid|guid)|.*[a-z](Id|ID|Uuid|UUID)", re.DOTALL)
_TIME_NAME = re.compile(r"(.*[_.-])?(ts|time|timestamp|date|datetime|at|ms)|.*[a-z](Time|Timestamp|Date|At)", re.DOTALL)
_EPOCH_SECONDS = (946_684_800, 4_102_444_800)
"""The years 2000 and 2100, in seconds since 1970."""

_flattener = Flattener(Identity())


class Mark(NamedTuple):
    """The reason why a member is not a good feature."""

    name: str
    why: str


class FieldProfile:
    """The values at one path through the records."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, ".".join(path)
        self.kinds = Counter[str]()
        self.counts = Counter[tuple[bool, Any]]()
        """How often each value occurs, with whether it is a boolean: for Python True equals 1.

        The elements of a list count, each by itself, but not objects.
        """
        self.rises = 0
        """A count of the numbers that are at least as large as the number before them."""
        self.example: Any = None
        self.fault: str | None = None
        """The reason why the service rejects a value at this path as a feature; None if it does not."""
        self._last = float("-inf")

    @property
    def kind(self) -> str:
        """The kinds of the values, in one word or more."""
        return " or ".join(kind for kind, _ in self.kinds.most_common())

    @property
    def present(self) -> int:
        """The number of records that have the member."""
        return self.kinds.total()

    @property
    def distinct(self) -> int:
        """The number of different values of the member."""
        return len(self.counts)

    @property
    def far_value(self) -> str:
        """The largest number next to the quartiles, if it is a hundred times as far from them as they are apart."""
        numbers = [float(value) for (_, value), n in self.counts.items() for _ in range(n) if self.kind == "number"]
        low, high = np.quantile(numbers or [0.0], (0.25, 0.75)).tolist()
        value = max(numbers, key=lambda number: abs(number - low), default=0.0)
        quartiles = f"is {value:g} once, and half of its values are between {low:g} and {high:g}"
        return quartiles if 0.0 < 100.0 * (high - low) < abs(value - low) else ""

    def add(self, value: Any) -> None:
        """Count the value of one record."""
        kind = type_name(value).split()[-1]
        self.kinds[kind] += 1
        self.example = value if self.example is None else self.example
        has_objects = kind == "list" and dict in map(type, value)
        try:
            _flattener.flatten(Pairs([(self.name, parse(msgspec.json.encode(value)) if has_objects else value)]))
        except Rejected as rejected:
            self.fault = str(rejected)
            return
        for element in () if has_objects else value if kind == "list" else [value]:
            self.counts[isinstance(element, bool), element] += 1
        if kind == "number":
            self.rises += value >= self._last
            self._last = value

    def mark(self, records: int) -> Mark | None:
        """The reason why the member is not a good feature in this number of records; None if it may be one."""
        if self.fault:
            return Mark("rejected", self.fault)
        if self.distinct == 1 and self.present == records > 1 and self.kind != "list":
            return Mark("constant", f"it is always {short_json(self.example)}")
        values = [value for _, value in self.counts]
        has_id_name, has_enough = _ID_NAME.fullmatch(self.path[-1]), self.present >= ENOUGH_VALUES
        share = self.distinct / self.present
        time = Mark("timestamp", f"a time, such as {short_json(self.example)}, does not recur")
        differ = f"{self.distinct:,} of {self.present:,} values differ"
        if self.kind == "string":
            if all(map(_DATE.fullmatch, values)):
                return time
            if (has_id_name and share >= 0.5) or (has_enough and share >= 0.8):
                is_text = 2 * sum(" " in value for value in values) > self.distinct
                return Mark("text" if is_text else "identifier", differ)
        if self.kind == "number":
            is_rising = has_enough and self.rises >= 0.95 * self.present
            if (_TIME_NAME.fullmatch(self.path[-1]) or is_rising) and _are_times(min(values), max(values)):
                return time
            if (has_id_name or (is_rising and share >= 0.9)) and all(value == int(value) for value in values):
                return Mark("identifier", f"a number that names or counts: {differ}")
        return None


def _are_times(low: float, high: float) -> bool:
    """Whether numbers are times since 1970, in seconds, milliseconds, microseconds or nanoseconds."""
    begin, end = _EPOCH_SECONDS
    return any(begin * unit <= low and high <= end * unit for unit in (1, 10**3, 10**6, 10**9))


def leaves(value: Any, outer: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The members of an object and of the objects in it, or the elements of a list, with their paths; no nulls."""
    for name, inner in enumerate(value) if isinstance(value, list) else value.items():
        path = (*outer, str(name))
        if isinstance(inner, dict) and len(path) < MAX_OBJECT_DEPTH:
            yield from leaves(inner, path)
        elif inner is not None:
            yield path, inner


def profile_fields(records: Sequence[Any]) -> dict[Path, FieldProfile]:
    """The members of objects or lists, in the order in which they first occur."""
    members: dict[Path, FieldProfile] = {}
    for record in records:
        for path, value in leaves(record):
            if path in members or len(members) < MAX_MEMBERS:
                members.setdefault(path, FieldProfile(path)).add(value)
    return members


def member_at(records: Iterable[Any], path: Path) -> FieldProfile:
    """The member at one path."""
    member = FieldProfile(path)
    for record in records:
        if (value := at(record, path)) is not None:
            member.add(value)
    return member
