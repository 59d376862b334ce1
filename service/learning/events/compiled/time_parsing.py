"""Times to the hour and the day of the week in UTC, compiled.

A result is 32·d + h for the day d, which is 1 on Monday, and the hour h, NO_HOUR for a date alone; 0 is no time. Only
integers are used, so no time is beyond the range of a calendar.
"""

from typing import Any

from service.learning.jit.intrinsics import byte_at
from service.learning.jit.jit import compiled

NO_HOUR = 24
FIRST_EPOCH, END_EPOCH = 10**8, 1 << 63
"""Numbers that are times are from the first of these on and below the other."""
_DASH, _PLUS, _COLON, _POINT, _COMMA, _SPACE, _ZERO, _NINE, _T, _Z = b"-+:., 09tz"
_INVALID = -1_000_000


@compiled
def hour_of_week(day: int, minutes: int, has_hour: bool) -> Any:
    """The result for a time so many minutes after the beginning of a day, which counts from 1970-01-01."""
    hours = 24 * day + minutes // 60
    return 32 * ((hours // 24 + 3) % 7 + 1) + (hours % 24 if has_hour else NO_HOUR)


@compiled
def epoch_hour(epoch: int) -> Any:
    """The result for seconds, milliseconds, microseconds or nanoseconds since 1970, by their size."""
    for limit, unit in ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (END_EPOCH - 1, 10**9)):
        if epoch < limit:
            return hour_of_week(0, epoch // (60 * unit), True)
    return 0


@compiled
def _first_day(year: int, month: int) -> int:
    """The first day of a month, in days since 1970-01-01. Years are counted from March, so that a leap day is last."""
    months = (month + 9) % 12
    year -= months // 10
    return 365 * year + year // 4 - year // 100 + year // 400 + (306 * months + 5) // 10 - 719_468


@compiled
def date_hour(year: int, month: int, day: int, minutes: int, has_hour: bool) -> Any:
    """The result for a time so many minutes after the beginning of a day."""
    if year < 1 or not 1 <= month <= 12:
        return 0
    first = _first_day(year, month)
    if not 1 <= day <= _first_day(year + month // 12, month % 12 + 1) - first:
        return 0
    return hour_of_week(first + day - 1, minutes, has_hour)


@compiled
def _is_digit(data: int, i: int) -> bool:
    return bool(_ZERO <= byte_at(data, i) <= _NINE)


@compiled
def _two_digits(data: int, i: int) -> Any:
    """The number that the two digits at i make; far below 0 if they are not digits."""
    if not (_is_digit(data, i) and _is_digit(data, i + 1)):
        return _INVALID
    return 10 * byte_at(data, i) + byte_at(data, i + 1) - 11 * _ZERO


@compiled
def _two_more(data: int, i: int) -> tuple[int, int]:
    """The number of two digits at i, after a colon or none, and the position after it; 0 and i if there is none."""
    begin = i + (byte_at(data, i) == _COLON)
    return (_two_digits(data, begin), begin + 2) if _is_digit(data, begin) else (0, i)


@compiled
def parse_iso_8601(data: int, i: int, end: int) -> Any:
    """The result for the text from i to `end`: a date, perhaps a time of the day, and perhaps a zone."""
    dash = 1 if byte_at(data, i + 4) == _DASH else 0
    year, month = 100 * _two_digits(data, i) + _two_digits(data, i + 2), _two_digits(data, i + 4 + dash)
    day, minute, hour, second, offset = _two_digits(data, i + 6 + 2 * dash), 0, 0, 0, 0
    if dash and byte_at(data, i + 7) != _DASH:
        return 0
    i += 8 + 2 * dash
    has_hour = i < end
    if has_hour:
        if byte_at(data, i) != _SPACE and byte_at(data, i) | 0x20 != _T:
            return 0
        hour, before = _two_digits(data, i + 1), i + 3
        minute, i = _two_more(data, before)
        if i > before:
            before = i
            second, i = _two_more(data, before)
        if i > before and (byte_at(data, i) == _POINT or byte_at(data, i) == _COMMA) and _is_digit(data, i + 1):
            i += 1
            while _is_digit(data, i):
                i += 1
        sign = byte_at(data, i)
        if sign | 0x20 == _Z:
            i += 1
        elif sign in (_PLUS, _DASH):
            zone_hour = _two_digits(data, i + 1)
            zone_minute, i = _two_more(data, i + 3)
            offset = (60 * zone_hour + zone_minute) * (1 if sign == _PLUS else -1)
            if not (0 <= zone_hour <= 23 and 0 <= zone_minute <= 59):
                return 0
    if i != end or not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 60):
        return 0
    return date_hour(year, month, day, 60 * hour + minute - offset, has_hour)
