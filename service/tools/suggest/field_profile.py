"""The members of a sample's records: their kinds and values, how they may be read, and what is odd about them."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from service.errors import Rejected
from service.learning.evaluation.advice import repeated_ids
from service.learning.events.compiled.time_parsing import FIRST_EPOCH
from service.learning.events.flatten import MAX_OBJECT_DEPTH, Flattener, typed_ends
from service.learning.events.json_values import Pairs, Path, number_in, parse, type_name, value_in
from service.learning.events.text_hints import spelling, text_hint
from service.learning.identity import MAX_VALUE, Identity
from service.text import short_json

MAX_MEMBERS = 10_000
ENOUGH_VALUES, MANY_VALUES = 20, 1000
"""With fewer values than these, the number of different ones says nothing, or little."""
FEW_SHARE = 0.05
"""A member is kept if at most this share of its values is rejected, and texts are noted if this share has a hint."""
MAX_CODES = 300
"""A whole number with more different values is not compared as a category, unless its name is that of an id."""
MIN_RECURRENCE = 5
"""A code occurs this many times on average."""
MIXED_SHARE = 0.9
"""Strings are numbers with some exceptions if at least this share of them is."""
WIDE_RANGE = 10**9
"""Whole numbers over such a range that hardly repeat are identifiers, unless most are small, as with amounts."""
MIN_REPETITIONS = 20
"""If whole numbers would repeat this often by chance, and hardly do, they count records, in whatever order."""
MAX_DELIVERIES = 3
"""The values of an identifier that recur more often are not those of events that are sent again."""
FIRST_YEAR = 1900
"""A list of numbers that begins with a smaller one is not a time."""

_TIME = re.compile(r"(\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[/.]\d\d?[/.]\d{4})([T ].*)?|\d\d?:\d\d(:\d\d([.,]\d+)?)?")
_LEADING_ZERO = re.compile(r"0\d+")
_ID_NAME = re.compile(r"(.*[_.-])?(id|uuid|guid)|.*[a-z](Id|ID|Uuid|UUID)", re.DOTALL)
_TIME_NAME = re.compile(r"(.*[_.-])?(ts|time|timestamp|date|datetime|at|ms)|.*[a-z](Time|Timestamp|Date|At)", re.DOTALL)
YEAR_2000, YEAR_2100 = 946_684_800, 4_102_444_800
"""In seconds since 1970."""

_flattener = Flattener(Identity())

Reading = Literal["as it is", "number", "category", "time", "left out"]
"""How the values of a member are read: as they are in the record, by a type, or not at all."""


class Mark(NamedTuple):
    """The reason why a member is not a good feature."""

    name: str
    why: str


class FieldProfile:
    """The values at one path through the records."""

    def __init__(self, path: Path, values: Iterable[Any] = ()) -> None:
        self.path, self.name = path, ".".join(path)
        self.kinds = Counter[str]()
        self.counts = Counter[tuple[bool, Any]]()
        """How often each value occurs, with whether it is a boolean: for Python True equals 1.

        The elements of a list count, each by itself, but not objects.
        """
        self.rises = 0
        """A count of the numbers that are at least as large as the number before them."""
        self.example: Any = None
        self.faults = Counter[str]()
        """The values that the service rejects as features, by the reason."""
        self.lengths = Counter[int]()
        """The lists of numbers by their lengths."""
        self.marked: Mark | None = None
        self.readings: list[Reading] = ["as it is"]
        """How the member may be read, the first if no other is better: see `judge`."""
        self.reading: Reading = "as it is"
        """How the member is read."""
        self._last = float("-inf")
        self._are_times = True
        """Whether all values so far are times, numbers aside."""
        for value in values:
            self.add(value)

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
    def note(self) -> str:
        """Why the member is left out or how it is read, in a word; "" if it is read as it is."""
        return self.marked.name if self.marked and self.reading == "left out" else self.reading.replace("as it is", "")

    @property
    def texts(self) -> dict[str, int]:
        """The strings that are no numbers, and how often each occurs."""
        texts = {value: n for (_, value), n in self.counts.items() if isinstance(value, str) and value}
        return {text: n for text, n in texts.items() if number_of(text) is None}

    @property
    def numbers(self) -> dict[float, int]:
        """The numbers outside of lists, also those in strings, and how often each occurs."""
        values = {} if self.kinds["list"] else self.counts
        return {x: n for (flag, value), n in values.items() if not flag and (x := number_of(value)) is not None}

    @property
    def is_mixed(self) -> bool:
        """Whether most strings are numbers, and some are not."""
        others, numbers = sum(self.texts.values()), sum(self.numbers.values()) - self.kinds["number"]
        has_codes = any(map(_LEADING_ZERO.fullmatch, self.texts))
        return not has_codes and 0 < others <= (1.0 - MIXED_SHARE) * (others + numbers)

    def add(self, value: Any) -> None:
        """Count the value of one record."""
        kind = type_name(value).split()[-1]
        self.kinds[kind] += 1
        self.example = value if self.example is None else self.example
        has_objects = kind == "list" and dict in map(type, value)
        self._are_times = self._are_times and (kind not in ("string", "list") or value in ("", []) or _is_time(value))
        try:
            _flattener.flatten(Pairs([(self.name, parse(msgspec.json.encode(value)) if has_objects else value)]))
        except Rejected as rejected:
            self.faults[str(rejected)] += 1
            return
        for element in () if has_objects else value if kind == "list" else [value]:
            self.counts[isinstance(element, bool), element] += 1
        if kind == "list" and not isinstance((value or [""])[0], str):
            self.lengths[len(value)] += 1
        if kind in ("string", "number") and (number := number_of(value)) is not None:
            self.rises += number >= self._last
            self._last = number

    def judge(self, records: int) -> None:
        """Set `marked`, `readings` and the first of them as the `reading`, in this number of records."""
        self.marked, numbers, self.readings = self.mark(records), self.numbers, ["as it is"]
        if self.marked:
            self.readings = ["left out"]
            if self.marked.name == "timestamp" and self._are_times:
                self.readings.append("time")
        elif numbers and not self.texts and not self.kinds["boolean"]:
            is_whole = all(number == int(number) for number in numbers)
            is_code = is_whole and 2 < self.distinct <= min(MAX_CODES, self.present / MIN_RECURRENCE)
            as_number: Reading = "as it is" if self.kind == "number" else "number"
            self.readings = [as_number, "category"] if is_code else [as_number]
            if is_whole and self.distinct > 2 and _ID_NAME.fullmatch(self.path[-1]):
                self.readings = ["category"]
        self.reading = self.readings[0]

    def mark(self, records: int) -> Mark | None:
        """The reason why the member is not a good feature in this number of records; None if it may be one."""
        if self.faults.total() > FEW_SHARE * self.present:
            return Mark("rejected", self.faults.most_common(1)[0][0])
        if self.path[-1].startswith("__"):
            return Mark("metadata", "Debezium and others add such members to a row")
        if self.distinct == 1 and self.present == records > 1 and self.kind != "list":
            return Mark("constant", f"it is always {short_json(self.example)}")
        has_id_name, has_enough = _ID_NAME.fullmatch(self.path[-1]), self.present >= ENOUGH_VALUES
        share, numbers, texts = self.distinct / self.present, self.numbers, self.texts
        recurs_little = has_enough and share >= (0.4 if self.present >= MANY_VALUES else 0.8)
        is_rising = has_enough and self.rises >= 0.95 * self.present
        time = Mark("timestamp", f"a time, such as {short_json(self.example)}, does not recur")
        differ = f"{self.distinct:,} of {self.present:,} values differ"
        is_date = self._are_times and self.kind in ("string", "list") and max(numbers, default=0) < FIRST_EPOCH
        if is_date or (texts and not numbers and all(map(_TIME.fullmatch, texts))):
            return time
        if numbers and not texts:
            if (_TIME_NAME.fullmatch(self.path[-1]) or is_rising) and _are_epochs(min(numbers), max(numbers)):
                return time
            low, spread = np.quantile([*map(float, numbers)], 0.25) - min(numbers), max(numbers) - min(numbers)
            is_wide = recurs_little and spread >= WIDE_RANGE and low >= spread / 100
            width = float(spread) + 1.0  # numbers drawn from such a range repeat so often by chance:
            by_chance = self.present + width * math.expm1(-self.present / width)
            is_count = by_chance >= MIN_REPETITIONS and self.present - self.distinct < by_chance / 10
            is_id = is_wide or is_count or (is_rising and share >= 0.9) or (has_id_name and (is_rising or share >= 0.3))
            if is_id and all(value == int(value) for value in numbers):
                return Mark("identifier", f"a number that names or counts: {differ}")
        elif self.kind == "string" and not self.is_mixed and ((has_id_name and share >= 0.3) or recurs_little):
            return Mark("text" if 2 * sum(" " in text for text in texts) > self.distinct else "identifier", differ)
        return None

    def notes(self, is_clipped: bool = False) -> Iterator[str]:
        """A line for each thing that is odd about the values, which the model may clip."""
        for fault, count in self.faults.most_common(1):
            yield f"{count:,} of {self.present:,} values of {self.name} make dead letters of their records: {fault}"
        numbers = self.numbers if self.kind == "number" else {}
        low, high = np.quantile([float(x) for x, n in numbers.items() for _ in range(n)] or [0], (0.25, 0.75)).tolist()
        far = max(numbers, key=lambda number: abs(number - low), default=0.0)
        if not is_clipped and 0.0 < 100.0 * (high - low) < abs(far - low):
            half = f"half of its values are between {low:g} and {high:g}"
            yield f"{self.name} is {far:g} once, and {half}: without clip = 6 such a value ruins a scaled model"
        if len(self.lengths) > 1:
            lengths = ", ".join(f"{length:,} ({count:,} times)" for length, count in self.lengths.most_common(3))
            yield f"{self.name} has lists of several lengths: {lengths}: each position is a feature"
        examples, texts, counts = dict[str, str](), self.texts, Counter[str]()
        for text, count in texts.items():
            if hint := "" if _LEADING_ZERO.fullmatch(text) else text_hint(text):
                examples.setdefault(hint, text)
                counts[hint] += count
        for hint, count in counts.items():
            if count > FEW_SHARE * self.present:
                yield f"{self.name}: {count:,} of {self.present:,} values, such as {short_json(examples[hint])}: {hint}"
        is_id = self.note == "identifier" and max(self.counts.values()) <= MAX_DELIVERIES
        if is_id and not counts and (line := repeated_ids(map(str, self.counts.elements()))):
            yield f"{self.name}: {line}"
        elif not counts:
            yield from _spelled_alike(f"values of {self.name}", texts)


def member_notes(members: Sequence[FieldProfile], is_clipped: bool = False) -> Iterator[str]:
    """A line for each thing that is odd about the names of members, or about the values of those that are read.

    `is_clipped` says that the model clips numbers.
    """
    yield from _spelled_alike("names", [member.name for member in members])
    for member in members:
        if member.note in ("", "number", "category", "identifier", "text"):
            yield from member.notes(is_clipped)


def _spelled_alike(what: str, names: Iterable[str]) -> Iterator[str]:
    """A line if some of these names or texts differ by what people overlook alone."""
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[spelling(name)].append(name)
    if alike := next((group for group in groups.values() if len(group) > 1), None):
        yield f"{what} differ by case, blanks or the form of Unicode alone, such as {alike[0]!a} and {alike[1]!a}"


def number_of(value: Any) -> float | None:
    """The number that a value is or has as text; None if a feature cannot be such a number."""
    number = number_in(value) if isinstance(value, str) else value
    return None if number is None or abs(number) > MAX_VALUE else number


def _is_time(value: Any) -> bool:
    """Whether the type `time` reads a value, and a list begins with a year."""
    try:
        return bool(typed_ends(value, "time", "", "")) and not (isinstance(value, list) and value[0] < FIRST_YEAR)
    except Rejected:
        return False


def _are_epochs(low: float, high: float) -> bool:
    """Whether numbers are times since 1970, in seconds, milliseconds, microseconds or nanoseconds."""
    return any(YEAR_2000 * unit <= low and high <= YEAR_2100 * unit for unit in (1, 10**3, 10**6, 10**9))


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
    return FieldProfile(path, (value for record in records if (value := value_in(record, path)) is not None))
