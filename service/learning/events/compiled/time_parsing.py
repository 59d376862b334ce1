"""Times to the hour and the day of the week in UTC, compiled.

A result is 32·d + h for the day d, which is 1 on Monday, and the hour h, NO_HOUR for a date alone; 0 is no time. Only
integers are used, so no time is beyond the range of a calendar.
"""

from typing import Any

from service.learning.jit import byte_at, compiled

NO_HOUR = 24
FIRST_EPOCH, END_EPOCH = 10**8, 1 << 63
"""Numbers that are times are from the first of these on and below the other."""
_DASH, _PLUS, _COLON, _POINT, _COMMA, _SPACE, _ZERO, _NINE, _T, _Z = b"-+:., 09tz"


@compiled
def hour_of_week(day: int, minutes: int, has_hour: bool) -> Any:
    """The result for a time so many minutes after the beginning of a day, which counts from 1970-01-01."""
    hours = 24 * day + minutes // 60
    return 32 * ((hours // 24 + 3) % 7 + 1) + (hours % 24 if has_hour else NO_HOUR)


@compiled
def epoch_hour(epoch: int) -> Any:
    """The result for seconds, milliseconds, microseconds or nanoseconds since 1970, by their size."""
    unit = 1 if epoch < 10**11 else 10**3 if epoch < 10**14 else 10**6 if epoch < 10**17 else 10**9
    return hour_of_week(0, epoch // (60 * unit), True)


@compiled
def _first_day(year: int, month: int) -> int:
    """The first day of a month, in days since 1970-01-01. Years are counted from March, so that a leap day is last."""
    months = (month + 9) % 12
    year -= months // 10
    return 365 * year + year // 4 - year // 100 + year // 400 + (306 * months + 5) // 10 - 719_468


@compiled
def date_hour(year: int, month: int, day: int, minutes: int, has_hour: bool) -> Any:
    """The result for a time so many minutes after the beginning of a day."""
    first = _first_day(year, month)
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= _first_day(year + month // 12, month % 12 + 1) - first:
        return 0
    return hour_of_week(first + day - 1, minutes, has_hour)


@compiled
def _two_digits(data: int, i: int, separator: int) -> tuple[int, int]:
    """The number of two digits at i, after the separator or none, and the position after it; -1 and i without it."""
    begin = i + (byte_at(data, i) == separator)
    tens, ones = byte_at(data, begin) - _ZERO, byte_at(data, begin + 1) - _ZERO
    return (10 * tens + ones, begin + 2) if 0 <= tens <= 9 and 0 <= ones <= 9 else (-1, i)


@compiled
def parse_iso_8601(data: int, begin: int, end: int) -> Any:
    """The result for the text from `begin` to `end`: a date, perhaps a time of the day, and perhaps a zone."""
    century, i = _two_digits(data, begin, 0)
    year, i = _two_digits(data, i, 0)
    month, i = _two_digits(data, i, _DASH)
    day, i = _two_digits(data, i, _DASH)
    if min(century, year, month, day) < 0 or i == begin + 9:  # one dash
        return 0
    hour, minute, zone_hour, zone_minute, offset, has_hour = 0, 0, 0, 0, 0, i < end
    if has_hour:
        if byte_at(data, i) != _SPACE and byte_at(data, i) | 0x20 != _T:
            return 0
        hour, i = _two_digits(data, i + 1, 0)
        minute, i = _two_digits(data, i, _COLON)
        second, i = _two_digits(data, i, _COLON) if minute >= 0 else (-1, i)
        if second >= 0 and byte_at(data, i) in (_POINT, _COMMA) and _ZERO <= byte_at(data, i + 1) <= _NINE:
            i += 1
            while _ZERO <= byte_at(data, i) <= _NINE:
                i += 1
        sign = byte_at(data, i)
        i += sign | 0x20 == _Z
        if sign in (_PLUS, _DASH):
            zone_hour, i = _two_digits(data, i + 1, 0)
            zone_minute, i = _two_digits(data, i, _COLON)
            offset = (60 * zone_hour + max(zone_minute, 0)) * (1 if sign == _PLUS else -1)
        if not (0 <= hour <= 23 and 0 <= zone_hour <= 23) or max(minute, zone_minute) > 59 or second > 60:
            return 0
    return date_hour(100 * century + year, month, day, 60 * hour + max(minute, 0) - offset, has_hour) if i == end else 0
