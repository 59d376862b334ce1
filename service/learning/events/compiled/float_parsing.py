"""Decimal numbers to the nearest double, compiled: m·10^q for a whole number m of up to 19 digits.

If m and 10^|q| are doubles themselves, one multiplication or division rounds correctly (Clinger 1990). Otherwise m is
multiplied by 128 bits of 5^q, which shows which double is nearest (Lemire, "Number parsing at a gigabyte per second",
2021). If neither is certain, and beyond 10^±60, the result is NaN.
"""

import math
from typing import Any

import numpy as np

from service.learning.jit.intrinsics import leading_zeros, upper_product
from service.learning.jit.jit import compiled

MAX_DIGITS = 19
"""More digits may not fit in 64 bits."""
_MAX_POWER = 60
_MAX_EXACT_POWER = 22
_MAX_EXACT_INTEGER = np.uint64(1 << 53)
_ONE, _THREE = np.uint64(1), np.uint64(3)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_MASK, _TOP, _LAST = np.uint64(0x1FF), np.uint64(63), np.uint64(9)


def _five_to(q: int) -> int:
    """The first 128 bits of 5^q, of which the first is 1; rounded up from 5^-27 to 5^-1, else down."""
    power: int = 5 ** abs(q)
    if q < 0:
        return (1 << power.bit_length() + 127) // power + (q >= -27)
    return power << 128 >> power.bit_length()


_FIVES = [divmod(_five_to(q), 1 << 64) for q in range(-_MAX_POWER, _MAX_POWER + 1)]
_HIGH, _LOW = (np.array(half, np.uint64) for half in zip(*_FIVES, strict=True))
POWERS = np.array([10.0**q for q in range(_MAX_EXACT_POWER + 1)])
"""The powers of ten that are doubles."""
_MIN_TWO = -400
_TWOS = np.array([2.0**e for e in range(_MIN_TWO, -_MIN_TWO)])


@compiled
def nearest_double(m: np.uint64, q: int) -> Any:
    """The double nearest to m·10^q, the even one of two equally near; NaN if that is uncertain."""
    if m == 0:
        return 0.0
    if m <= _MAX_EXACT_INTEGER and -_MAX_EXACT_POWER <= q <= _MAX_EXACT_POWER:
        return float(m) / POWERS[-q] if q < 0 else float(m) * POWERS[q]
    if not -_MAX_POWER <= q <= _MAX_POWER:
        return math.nan
    shift = leading_zeros(m)
    w = m << np.uint64(shift)
    power = _HIGH[q + _MAX_POWER]
    high, low = upper_product(w, power), w * power
    if high & _MASK == _MASK:  # the lower half may change it
        more = upper_product(w, _LOW[q + _MAX_POWER])
        low += more
        if low < more:
            high += _ONE
    if low == _ALL and not -27 <= q <= 55:
        return math.nan
    upper = high >> _TOP
    rounded = high >> (upper + _LAST)
    exponent = ((217706 * q) >> 16) + 63 + int(upper) - shift - 52
    if low <= _ONE and -4 <= q <= 23 and rounded & _THREE == _ONE and rounded << (upper + _LAST) == high:
        rounded -= _ONE  # exactly between two doubles: the even one
    rounded = (rounded + (rounded & _ONE)) >> _ONE
    return float(rounded) * _TWOS[exponent - _MIN_TWO]
