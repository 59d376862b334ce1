"""What a sample of records holds: each flattened member, its kind, how often it is there, its values, and what it is.

A member that is no good as a feature gets a mark: it names a record, tells the time, is always the same, or could not
be learned.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from service.learning.events.flatten import MAX_OBJECT_DEPTH
from service.learning.events.json_pointer import Path, to_pointer
from service.learning.identity import Identity

MOST_VALUES = 100_000
"""Distinct values of a member that are counted."""
MOST_MEMBERS = 10_000
EXAMPLE = 28
"""Characters of one that is shown."""
ENOUGH = 20
"""Values: of fewer, how many differ says nothing."""
LONGEST = Identity().max_name_bytes

NO_FEATURE = ("list of objects", "list of mixed kinds", "object")
"""Kinds of which no feature is made; of objects those that stand too deep."""

_DATE = re.compile(r"(\d{4}-\d\d-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{4}|\d{4}/\d\d?/\d\d?)([T ]\d{1,2}:\d\d.*)?")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_ID = re.compile(r"(.*[_.-])?(id|uuid|guid)|.*[a-z](Id|ID|Uuid|UUID)", re.DOTALL)
_TIME = re.compile(r"(.*[_.-])?(ts|time|timestamp|date|datetime|at|ms)|.*[a-z](Time|Timestamp|Date|At)", re.DOTALL)
_COMMA = re.compile(r"[-+]?\d+,\d+")
_EPOCH = (946_684_800, 4_102_444_800)
"""Seconds of the years 2000 and 2100."""

Key = tuple[bool, Any]
"""A value and whether it is a boolean, which Python takes for a number."""


class Mark(NamedTuple):
    """Why a member is no good as a feature."""

    name: str
    why: str


class Member:
    """What stands at one way through the records."""

    def __init__(self, way: Path) -> None:
        self.way, self.name = way, ".".join(way)
        self.present = 0
        self.kinds = Counter[str]()
        self.counts = dict[Key, int]()
        """How often each value is there: of a list, each of those in it."""
        self.late = 0
        """How many values came for the first time in the later half of the records."""
        self.example: Any = None
        self.values = self.rises = 0
        """How many, and how many numbers are no smaller than the one before."""
        self.whole = 0
        """How many of its different values are whole numbers."""
        self.low, self.high = math.inf, -math.inf
        self._last: float | None = None

    @property
    def kind(self) -> str:
        """Its kinds of values; `null` where it has none."""
        return " or ".join(kind for kind, _ in self.kinds.most_common() if kind != "null") or "null"

    @property
    def distinct(self) -> int:
        """How many different values it has; MOST_VALUES where they are more."""
        return len(self.counts)

    def add(self, value: Any, late: bool) -> None:
        """Take in what stands there in one record, which may be of the later half."""
        self.kinds[kind := kind_of(value)] += 1
        if value is None:
            return
        self.present += 1
        if self.example is None:
            self.example = value
        if kind in NO_FEATURE:
            return
        for one in value if isinstance(value, list) else [value]:
            self._take(one, late)

    def _take(self, one: Any, late: bool) -> None:
        key = (one.__class__ is bool, one)
        self.values += 1
        if isinstance(one, int | float) and one.__class__ is not bool:
            if self._last is not None:
                self.rises += one >= self._last
            self._last = one
        if key in self.counts:
            self.counts[key] += 1
        elif len(self.counts) < MOST_VALUES:
            self.counts[key] = 1
            self.late += late
            if not isinstance(one, str):
                self.low, self.high = min(self.low, one), max(self.high, one)
                self.whole += one == int(one)

    @property
    def texts(self) -> list[str]:
        """Its distinct values that are strings."""
        return [value for _, value in self.counts if isinstance(value, str)]

    def mark(self, records: int) -> Mark | None:
        """Why it is no good as a feature, where `records` are profiled; None where nothing says so."""
        if not self.present:
            return Mark("empty", "it is never there")
        if unfit := [kind for kind in NO_FEATURE if kind in self.kinds]:
            return Mark("list" if "list" in unfit[0] else "deep", f"a {unfit[0]} is no feature")
        scalar = not any(kind.startswith(("list", "empty")) for kind in self.kinds)
        own, several = self.way[-1] if self.way else "", self.present >= ENOUGH
        share = self.distinct / self.present
        differ = f"{self.distinct:,} of {self.present:,} values differ"
        texts, text = self.texts, self.kinds["string"] == self.present

        def are(form: re.Pattern[str]) -> bool:
            return sum(map(bool, map(form.fullmatch, texts))) >= 0.95 * len(texts)

        number = self.kinds["number"] == self.present
        if scalar and self.distinct == 1 and self.present == records and records > 1:
            return Mark("constant", f"it is always {shown(self.example)}")
        if scalar and texts and are(_COMMA):  # a whole number among them has none
            such = f"a number with a comma, such as {shown(texts[0])}, is a string: write it with a point"
            return Mark("decimal comma", such)
        if text and are(_DATE):
            return Mark("timestamp", f"a time, such as {shown(self.example)}, does not come back")
        if number and self._epoch(_TIME.fullmatch(own) is not None):
            return Mark("timestamp", f"a time since 1970, such as {shown(self.example)}, does not come back")
        if text and are(_UUID):
            return Mark("identifier", f"UUIDs: {differ}")
        if number and self.whole == self.distinct and _ID.fullmatch(own):
            return Mark("identifier", f"its name says so, and its size means nothing: {differ}")
        if number and several and self.whole == self.distinct and share >= 0.9 and self._rising >= 0.95:
            return Mark("identifier", f"a number that counts up: {differ}")
        if text and (share >= 0.5 and _ID.fullmatch(own)):
            return Mark("identifier", f"its name says so: {differ}")
        if text and several and share >= 0.8:  # most never come back
            return Mark("text" if 2 * sum(" " in one for one in texts) > self.distinct else "identifier", differ)
        own_bytes = len(self.name.encode())
        if (longest := max((own_bytes + 1 + len(one.encode()) for one in texts), default=own_bytes)) > LONGEST:
            return Mark("long", f"as name=value it has up to {longest:,} bytes, and {LONGEST} are the limit")
        return None

    @property
    def _rising(self) -> float:
        return self.rises / max(self.values - 1, 1)

    def _epoch(self, named: bool) -> bool:
        """Whether these are times since 1970, in seconds or a thousandth, millionth or billionth of one."""
        low, high = _EPOCH
        within = any(low * unit <= self.low and self.high <= high * unit for unit in (1, 10**3, 10**6, 10**9))
        return within and (named or (self.present >= ENOUGH and self._rising >= 0.75))


def kind_of(value: Any) -> str:
    """What a flattened value is: a list by what is in it."""
    if isinstance(value, list):
        inner = {kind_of(one) for one in value}
        if "object" in inner:
            return "list of objects"
        plain = len(inner) == 1 and inner <= {"number", "boolean", "string"}
        return f"list of {inner.pop()}s" if plain else "list of mixed kinds" if inner else "empty list"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"


def flat(value: Any, outer: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The members of an object, and of those within it, each with its way; those of a list are its positions."""
    members = enumerate(value) if isinstance(value, list) else value.items()
    for name, one in members:
        here = (*outer, str(name))
        if isinstance(one, dict) and len(here) < MAX_OBJECT_DEPTH:
            yield from flat(one, here)
        else:
            yield here, one


def at(record: Any, way: Path) -> Any:
    """What stands at a way through objects; None where nothing does."""
    for name in way:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def profile(records: Iterable[Any], count: int) -> dict[Path, Member]:
    """The members of so many objects or lists, in the order in which they came first."""
    members: dict[Path, Member] = {}
    for i, record in enumerate(records):
        for way, value in flat(record):
            if way not in members and len(members) >= MOST_MEMBERS:
                continue
            members.setdefault(way, Member(way)).add(value, 2 * i >= count)
    return members


def member_at(records: Iterable[Any], way: Path, name: str = "") -> Member:
    """What stands at one way through these records; it may be called by another name."""
    member = Member(way)
    member.name = name or member.name
    for record in records:
        if (value := at(record, way)) is not None:
            member.add(value, False)
    return member


def pointer_of(outer: str, member: Member) -> str:
    """The pointer to a member of what stands at `outer`."""
    return outer + to_pointer(member.way)


def shown(value: Any) -> str:
    """A value as JSON writes it, cut to a width; a whole number without a point, as 5000 stands in a table."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    text = json.dumps(int(value) if whole else value, ensure_ascii=False)
    return text if len(text) <= EXAMPLE else text[: EXAMPLE - 1] + "…"


def plain(text: str) -> str:
    """A text on one line, without what a terminal would take for a command."""
    return "".join(one if one.isprintable() else "?" for one in text)
