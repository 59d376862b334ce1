"""Values of features: what is a number, and what the types of a model's settings make of a value.

A number may be written as a string. A category may be written as a number or a boolean: equal numbers are one category.
A time becomes categories of its hour and of its day in UTC. A value that is null or an empty string is absent.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from service.errors import Rejected
from service.learning.events.compiled import time_parsing
from service.learning.events.compiled.time_parsing import END_EPOCH, FIRST_EPOCH, NO_HOUR
from service.learning.events.json_pointer import to_pointer
from service.learning.events.json_values import number_in, type_name
from service.learning.events.text_hints import in_brackets
from service.learning.identity import MAX_VALUE, ValueType

_EXPECTED = {
    "number": "a number, or a string that is a JSON number",
    "category": "a string, number or boolean",
    "time": f"a time: in ISO 8601, as a list from the year on, or as an epoch from {FIRST_EPOCH:g} on",
}
_BEYOND = 10**300
"""Beyond MAX_VALUE, but a double can hold it."""


def is_nan(value: Any) -> bool:
    """Whether a value is NaN, or the string."""
    return value == "NaN" if value.__class__ is str else value.__class__ is float and math.isnan(value)


def typed_ends(value: Any, kind: ValueType, name: str, pointer: str, *own: str) -> Mapping[str, float]:
    """The features of a value of this type, by what follows its name; raises Rejected if it has another type.

    The value stands at the path `own` of the value at `pointer`.

    >>> typed_ends("31.50", "number", "amount", ""), typed_ends(90210.0, "category", "zip", "")
    ({'': 31.5}, {'=90210': 1})
    >>> typed_ends("2026-08-20T13:45:04+00:30", "time", "at", ""), typed_ends("", "time", "at", "")
    ({'.hour=13': 1, '.weekday=4': 1}, {})
    """
    if value is None or value == "":
        return {}
    is_text = value.__class__ is str
    number = number_in(value) if is_text else value if value.__class__ in {int, float} else None
    if kind == "time":
        day, hour = divmod(_hour_of_week(value, number), 32)
        if day:
            return ({} if hour == NO_HOUR else {f".hour={hour}": 1}) | {f".weekday={day}": 1}
    elif kind == "category" and (is_text or value.__class__ is bool):
        return {f"={value if is_text else json.dumps(value)}": 1}
    elif number is not None:
        feature = finite_number(number, name, pointer, *own)
        return {"": feature} if kind == "number" else {f"={int(number) if number == int(number) else number}": 1}
    expected = f"{_EXPECTED[kind]}{in_brackets(value)}"
    raise Rejected("wrong-type", f"feature {quoted(name)} must be {expected}", pointer + to_pointer(own))


def _hour_of_week(value: Any, number: float | None) -> Any:
    """The hour and day of a time, as `time_parsing` has them; 0 if the value, or the number in it, is not a time."""
    if value.__class__ is list:
        return _hour_of_list(value)
    text = np.frombuffer((value if value.__class__ is str else "").encode() + bytes(16), np.uint8)
    hour_of_week = time_parsing.parse_iso_8601(text.ctypes.data, 0, len(text) - 16)
    if hour_of_week == 0 and number is not None and FIRST_EPOCH <= number < END_EPOCH:
        return time_parsing.epoch_hour(int(number))
    return hour_of_week


def _hour_of_list(values: list[Any]) -> Any:
    """The same for `[year, month, day, hour, minute, second, nanosecond]`, or for the first three or more of them."""
    ends = (10_000, 13, 32, 24, 60, 61, 1e9)
    in_range = (x.__class__ in {int, float} and 0 <= x < end for x, end in zip(values, ends, strict=False))
    if not 3 <= len(values) <= len(ends) or not all(in_range) or any(x != int(x) for x in values[:5]):
        return 0
    year, month, day, hour, minute = map(int, (*values, 0, 0)[:5])
    return time_parsing.date_hour(year, month, day, 60 * hour + minute, len(values) > 3)


def finite_number(value: Any, name: str, pointer: str, *own: str) -> float:
    """A number as a double; raises Rejected if it breaks a rule. It is at the path `own` of the value at `pointer`."""
    if value.__class__ is int:
        value = float(max(-_BEYOND, min(value, _BEYOND)))
    if value.__class__ is not float:
        reason, problem = "wrong-type", f"must be a number, got {type_name(value)}"
    elif not math.isfinite(value):
        reason, problem = "not-finite", "is not a finite number"
    elif abs(value) > MAX_VALUE:
        reason, problem = "out-of-range", f"is beyond ±{MAX_VALUE:g}"
    else:
        return float(value)
    raise Rejected(reason, f"feature {quoted(name)} {problem}", pointer + to_pointer(own))


def quoted(name: str) -> str:
    """A name as messages show it."""
    return json.dumps(name, ensure_ascii=False)
