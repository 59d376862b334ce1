"""JSON tokens at an address, compiled: white space, strings, numbers and literals, as strict as JSON is.

The functions do not check for the end of the buffer: it ends with zeros, which stop every token. The caller compares
the end of a token with the end of its value. A result of -1 means that this is not a token, or not certainly one.

A number m·10^q, for a whole m of up to 19 digits, becomes the nearest double. If m and 10^|q| are doubles themselves,
one multiplication or division rounds correctly (Clinger 1990). Otherwise m is multiplied by 128 bits of 5^q, which
shows which double is nearest (Lemire, "Number parsing at a gigabyte per second", 2021). If neither is certain, and
beyond 10^±60, the result is NaN.
"""

import math
from typing import Any

import numpy as np

from service.learning.jit import byte_at, compiled, inlined, leading_zeros, trailing_zeros, upper_product, word_at

NULL, FALSE, TRUE = range(3)

_QUOTE, _BACKSLASH, _COMMA, _DOT, _MINUS, _PLUS, _ZERO = b'"\\,.-+0'
_BRACKET_END, _SPACE, _TAB, _NEWLINE, _RETURN = b"] \t\n\r"
_E, _U = b"eu"
_CONTROLS = {"b": 8, "f": 12, "n": 10, "r": 13, "t": 9}
ESCAPES = np.array([_CONTROLS.get(chr(c), c if chr(c) in '"\\/' else 0) for c in range(256)])
"""The character that a letter after a backslash means; 0 if it means none."""
HEX = np.array([int(chr(c), 16) if chr(c) in "0123456789abcdefABCDEF" else -1 for c in range(256)])
"""The value of a hexadecimal digit; -1 for other characters."""
_NOTHING, _ONE, _EIGHT, _TEN, _SIXTEEN, _HALF = (np.uint64(n) for n in (0, 1, 8, 10, 16, 32))
_BYTE, _POINT = np.uint64(0xFF), np.uint64(_DOT ^ _ZERO)
_TENS = np.array([10**n for n in range(9)], np.uint64)
_DIGITS, _BEYOND, _HIGH_BITS = (np.uint64(int(byte * 8, 16)) for byte in ("30", "76", "80"))
_ONES, _SPACES, _QUOTES, _BACKSLASHES = (np.uint64(int(byte * 8, 16)) for byte in ("01", "20", "22", "5c"))
_PAIRS = np.uint64(0x000000FF000000FF)
_FOURTH, _SECOND = np.uint64(100 + (1_000_000 << 32)), np.uint64(1 + (10_000 << 32))
_THREE, _FOUR, _FIVE = np.uint64((1 << 24) - 1), np.uint64((1 << 32) - 1), np.uint64((1 << 40) - 1)
_NULL_WORD, _TRUE_WORD, _FALSE_WORD, _NAN_WORD = np.array([b"null", b"true", b"false", b"NaN"], "S8").view("<u8")
_MAX_DIGITS = 19
"""More digits may not fit in 64 bits."""
_MAX_POWER = 60
_MAX_EXACT_POWER = 22
_MAX_EXACT_INTEGER = np.uint64(1 << 53)
_LOWEST_TWO = np.uint64(3)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_MASK, _TOP, _LAST = np.uint64(0x1FF), np.uint64(63), np.uint64(9)


@compiled
def parse_string(data: int, i: int, plain: bool) -> int:
    """The position after the closing quote of the string whose first character is at i, or -1."""
    while True:
        word = word_at(data, i)
        quoted, escaped = word ^ _QUOTES, word ^ _BACKSLASHES
        # The lowest of these bits is right: a wrong bit can only come from a borrow of a lower byte.
        special = (quoted - _ONES) & ~quoted | (escaped - _ONES) & ~escaped | (word - _SPACES) & ~word | word
        special &= _HIGH_BITS
        if special == 0:
            i += 8
            continue
        i += trailing_zeros(special) >> 3
        c = byte_at(data, i)
        if c == _QUOTE:
            return i + 1
        if c < _SPACE:
            return -1
        if c >= 0x80:
            size = _utf8(data, i)
            if size == 0:
                return -1
            i += size
        elif plain:
            return -1
        elif byte_at(data, i + 1) == _U:
            code = 0
            for j in range(i + 2, i + 6):
                code = code << 4 | HEX[byte_at(data, j)]  # it stays below 0 after a character that is no digit
            if code < 0 or 0xD800 <= code < 0xE000:  # half of a surrogate pair
                return -1
            i += 6
        elif ESCAPES[byte_at(data, i + 1)]:
            i += 2
        else:
            return -1


@compiled
def _utf8(data: int, i: int) -> int:
    """The length in bytes of the UTF-8 character at i; 0 if it is not valid."""
    c = byte_at(data, i)
    size = 2 if 0xC2 <= c < 0xE0 else 3 if 0xE0 <= c < 0xF0 else 4
    for j in range(i + 1, i + size):
        if byte_at(data, j) & 0xC0 != 0x80:
            return 0
    begin = c << 8 | byte_at(data, i + 1)
    is_surrogate = 0xEDA0 <= begin < 0xEE00
    # Other bytes continue a character, or begin one that has a shorter form or that Unicode does not have.
    is_valid = 0xC280 <= begin < 0xE000 or 0xE0A0 <= begin < 0xF000 or 0xF090 <= begin < 0xF490
    return size if is_valid and not is_surrogate else 0


@compiled
def _digits(data: int, i: int) -> tuple[np.uint64, int]:
    """The number that up to eight digits from i on make, and how many they are."""
    word = word_at(data, i) ^ _DIGITS
    # The lowest of these bits belongs to the first byte that is not a digit. Without a bit there are eight digits.
    count = trailing_zeros(((word + _BEYOND) | word) & _HIGH_BITS) >> 3
    return (_from_digits(word, count) if count > 0 else _NOTHING), count


@compiled
def _from_digits(word: np.uint64, count: int) -> Any:
    """The number that the first `count` bytes of a word make, at least one, each a digit from 0 to 9."""
    word <<= np.uint64(64 - 8 * count)
    # Pairs of digits become numbers, then the four numbers become one.
    word = word * _TEN + (word >> _EIGHT)
    return ((word & _PAIRS) * _FOURTH + ((word >> _SIXTEEN) & _PAIRS) * _SECOND) >> _HALF


def _five_to(q: int) -> int:
    """The first 128 bits of 5^q, of which the first is 1; rounded up from 5^-27 to 5^-1, else down."""
    power: int = 5 ** abs(q)
    if q < 0:
        return (1 << power.bit_length() + 127) // power + (q >= -27)
    return power << 128 >> power.bit_length()


_FIVES = [divmod(_five_to(q), 1 << 64) for q in range(-_MAX_POWER, _MAX_POWER + 1)]
_HIGH, _LOW = (np.array(half, np.uint64) for half in zip(*_FIVES, strict=True))
_POWERS = np.array([10.0**q for q in range(_MAX_EXACT_POWER + 1)])
"""The powers of ten that are doubles."""
_MIN_TWO = -400
_TWOS = np.array([2.0**e for e in range(_MIN_TWO, -_MIN_TWO)])


@compiled
def _nearest_double(m: np.uint64, q: int) -> Any:
    """The double nearest to m·10^q, the even one of two equally near; NaN if that is uncertain."""
    if m == 0:
        return 0.0
    if m <= _MAX_EXACT_INTEGER and -_MAX_EXACT_POWER <= q <= _MAX_EXACT_POWER:
        return float(m) / _POWERS[-q] if q < 0 else float(m) * _POWERS[q]
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
    if low <= _ONE and -4 <= q <= 23 and rounded & _LOWEST_TWO == _ONE and rounded << (upper + _LAST) == high:
        rounded -= _ONE  # exactly between two doubles: the even one
    rounded = (rounded + (rounded & _ONE)) >> _ONE
    return float(rounded) * _TWOS[exponent - _MIN_TWO]


@compiled
def parse_number(data: int, i: int) -> tuple[float, int]:
    """The number at i and the position after it, or -1 there; NaN if the value is uncertain."""
    negative = byte_at(data, i) == _MINUS
    if negative:
        i += 1
    # Most numbers have a point and end within eight bytes: then all digits are taken at once, without the point.
    word = word_at(data, i) ^ _DIGITS
    non_digits = ((word + _BEYOND) | word) & _HIGH_BITS  # a point carries nothing into the next byte
    after = non_digits & (non_digits - _ONE)
    before, end = trailing_zeros(non_digits) >> 3, trailing_zeros(after) >> 3
    if (
        after != 0
        and (word >> np.uint64(8 * before)) & _BYTE == _POINT
        and 0 < before < end - 1
        and (before == 1 or word & _BYTE != 0)
        and byte_at(data, i + end) | 0x20 != _E
    ):
        point = np.uint64(8 * before)
        word = (word & ((_ONE << point) - _ONE)) | (word >> (point + _EIGHT)) << point
        value = float(_from_digits(word, end - 1)) / _POWERS[end - 1 - before]
        return (-value if negative else value), i + end
    start, m, q, whole, whole_exponent = i, np.uint64(0), 0, True, True
    d = byte_at(data, i) - _ZERO
    while 0 <= d <= 9:
        m = m * _TEN + np.uint64(d)
        i += 1
        d = byte_at(data, i) - _ZERO
    digits = i - start
    if digits == 0 or (digits > 1 and byte_at(data, start) == _ZERO):
        return 0.0, -1
    if byte_at(data, i) == _DOT:
        i, whole = i + 1, False
        fraction, count = i, 8
        while count == 8:
            more, count = _digits(data, i)
            m, i = m * _TENS[count] + more, i + count
        if i == fraction:
            return 0.0, -1
        q = fraction - i
        digits -= q
        if digits > _MAX_DIGITS and byte_at(data, start) == _ZERO:
            digits -= 1  # leading zeros do not count
            while byte_at(data, fraction) == _ZERO:
                fraction, digits = fraction + 1, digits - 1
    if byte_at(data, i) | 0x20 == _E:
        i, whole = i + 1, False
        minus = byte_at(data, i) == _MINUS
        if minus or byte_at(data, i) == _PLUS:
            i += 1
        exponent, count = _digits(data, i)
        if count == 0:
            return 0.0, -1
        i += count
        while 0 <= byte_at(data, i) - _ZERO <= 9:
            i, whole_exponent = i + 1, False
        q += -int(exponent) if minus else int(exponent)
    if digits > _MAX_DIGITS or not whole_exponent or (whole and negative and m == 0):
        return math.nan, i
    value = _nearest_double(m, q)
    return (-value if negative else value), i


@compiled
def is_nan(data: int, i: int, end: int) -> bool:
    """Whether the text from i to `end` is NaN."""
    return bool(end == i + 3 and word_at(data, i) & _THREE == _NAN_WORD)


@compiled
def skip_space(data: int, i: int) -> int:
    """The position after white space."""
    c = byte_at(data, i)
    while c <= _SPACE and c in (_SPACE, _NEWLINE, _TAB, _RETURN):
        i += 1
        c = byte_at(data, i)
    return i


@compiled
def parse_literal(data: int, i: int) -> int:
    """The literal at i: NULL, FALSE, TRUE or -1."""
    word = word_at(data, i)
    if word & _FIVE == _FALSE_WORD:
        return FALSE
    word &= _FOUR
    return TRUE if word == _TRUE_WORD else NULL if word == _NULL_WORD else -1


@inlined
def parse_positions(data: int, i: int, into: Any, first: int, count: int, max_value: float) -> int:
    """Read `count` numbers of a list from i on, after its bracket; returns the position after the list, or -1."""
    for n in range(first, first + count):
        value, i = parse_number(data, skip_space(data, i))
        if i < 0 or not abs(value) <= max_value:
            return -1
        into[n] = value
        i = skip_space(data, i)
        if byte_at(data, i) != (_COMMA if n + 1 < first + count else _BRACKET_END):
            return -1
        i += 1
    return i
