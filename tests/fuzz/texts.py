"""JSON texts as careless, unusual and hostile producers would write them. All choices come from one seed."""

import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from random import Random

NAMES = (
    "a", "b", "c", "age", "clicks", "features", "label", "weight", "id", "instances", "", "a:b", 'q"', "\\", "/", "~1",
    "é", "ü" * 4, "日本", "😀", "\x00", "\n", "\x7f", "\ufeff", "n" * 8, "n" * 9, "nan",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "-1", "2", "7", "0.0", "-0.0", "1.0", "-1.0", "1e0", "1E+0", "10e-1", "0.1", "0.30000000000000004",
    "1e30", "1E30", "-1e30", "1.0000000000000001e30", "1.01e30", "1000000000000000019884624838656",
    "1000000000000000019884624838657", "9007199254740993", "18446744073709551616", "9223372036854775808",
    "-9223372036854775809", "5e-324", "2e-324", "1e-400", "4.9406564584124654e-324", "2.2250738585072011e-308",
    "1e308", "1e309", "1e999", "-1e999", "1e99999999999999999999", "1e-99999999999999999999", "0e999", "1e6", "1000000",
    "1000000.0000000001", "1e-300", "0.5", "123456789012345678901234567890.123456789", "0." + "1" * 40, "9" * 400,
)  # fmt: skip
NO_NUMBERS = (
    "NaN", "Infinity", "-Infinity", "nan", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "--1", "0x10", "1_0", "1,5",
    "1d", "-", "٣", "\uff11", "True", "None", "undefined",
)  # fmt: skip
NO_CHARACTERS = (
    "\\ud800", "\\uDFFF", "\\ude00\\ud83d", "\\ud83d\\ude00", "\\u00", "\\x41", "\\", "\t", "\x00", '"',
)  # fmt: skip
TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"1", b"-", b".", b"e", b"\x00", b"\xff",
    b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\\u", b"\\ud800", b"\\udc00", b"//",
    b'"label":1', b'"weight":2', b'"features":', b'"features":{}', b"\n", b" ", b"\x0b", b"\xc2\xa0", b"[" * 70,
    b'{"":' * 70, b"9" * 5000,
)  # fmt: skip
TRAILING = (b" ", b"\n", b"{}", b"1", b"\x00", b"\xff", b",", b"}", b" null", b"\xef\xbb\xbf", b" \t\r\n", b'"', b"NaN")
SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "/": "\\/", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\r": "\\r"}


class Texts:
    """Parts of JSON texts, by a seeded generator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._past: list[bytes] = [b'{"features":{"a":1},"label":1}']

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def space(self) -> str:
        return "" if self.chance(0.9) else self.random.choice((" ", "\n", "\t", "\r", "  ", " \n "))

    def name(self) -> str:
        roll = self.random.random()
        if roll < 0.7:
            return self.random.choice(NAMES)
        if roll < 0.95:
            return f"n{self.random.randrange(40)}"
        characters = (0x20, 0x22, 0x3A, 0x5C, 0x80, 0xE9, 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF)
        return "".join(map(chr, self.random.choices(characters, k=self.random.randrange(70))))

    def string(self, text: str) -> str:
        """A JSON string of this text: plain, partly escaped, or malformed."""
        if self.chance(0.75):
            return json.dumps(text, ensure_ascii=self.chance(0.3))
        parts = [self._character(c) for c in text]
        if self.chance(0.15):
            parts.insert(self.random.randint(0, len(parts)), self.random.choice(NO_CHARACTERS))
        return '"' + "".join(parts) + '"'

    def _character(self, c: str) -> str:
        roll = self.random.random()
        if roll < 0.4:
            units = c.encode("utf-16-be")
            upper = self.random.choice(("{:04x}", "{:04X}"))
            return "".join("\\u" + upper.format(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))
        if c in SHORT and (roll < 0.7 or c != "/"):
            return SHORT[c]
        return json.dumps(c, ensure_ascii=False)[1:-1]

    def number(self) -> str:
        roll = self.random.random()
        if roll < 0.5:
            return f"{self.random.randint(-20, 20) / 4:g}"
        if roll < 0.7:
            return repr(self.random.uniform(-1, 1) * 10.0 ** self.random.randint(-20, 20))
        if roll < 0.75:
            digits = "".join(self.random.choices("0123456789", k=self.random.randint(1, 45)))
            return f"{self.random.choice(('', '-'))}{digits}{self.random.choice(('', '.5', 'e2', 'E-30', '.0e-5'))}"
        return self.random.choice(NUMBERS)

    def value(self, depth: int = 0) -> str:
        """Any JSON value, or a text that a producer might mistake for one."""
        roll = self.random.random()
        if roll < 0.3:
            return self.number()
        if roll < 0.5:
            return self.string(self.name())
        if roll < 0.7:
            return self.random.choice(("true", "false", "null", '"1"', '"1.5"', "[]", "{}", "[[]]"))
        if roll < 0.75:
            return self.random.choice(NO_NUMBERS)
        if roll < 0.78:
            levels = self.random.choice((30, 60, 61, 62, 63, 64, 65, 100, 2000))
            return "[" * levels + "]" * levels
        if depth > 3:
            return "0"
        inner = [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        return self.list(inner) if self.chance(0.5) else self.object([(self.name(), v) for v in inner])

    def list(self, values: Sequence[str]) -> str:
        return "[" + ",".join(self.space() + v + self.space() for v in values) + "]"

    def object(self, members: Sequence[tuple[str, str]]) -> str:
        space = self.space
        return (
            "{" + ",".join(f"{space()}{self.string(name)}{space()}:{space()}{v}{space()}" for name, v in members) + "}"
        )

    def features(self, positional: bool, dimension: int, typed: bool = False) -> str:
        """Features that are mostly well-formed: each part is malformed once in a while.

        `typed` adds values that types read: numbers and times as text, and NaN.
        """
        if self.chance(0.02):
            return self.value()
        odd = 0.03
        if positional != self.chance(0.02):
            n = dimension if self.chance(0.95) else self.random.randrange(6)
            return self.list([self.value() if self.chance(odd) else self.number() for _ in range(n)])
        n = self.random.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 8))
        names = [self.name() for _ in range(n)]
        if self.chance(0.9):
            names = list(dict.fromkeys(names))
        return self.object([(name, self.value() if self.chance(odd) else self.feature(typed=typed)) for name in names])

    def feature(self, depth: int = 1, typed: bool = False) -> str:
        """A random value of a feature: most often a number."""
        roll, random = self.random.random(), self.random
        if typed and self.chance(0.5):
            values = [self.typed_value() for _ in range(random.choice((0, 1, 1, 2, 3)) if self.chance(0.2) else 1)]
            return values[0] if len(values) == 1 else self.list(values)
        if roll < 0.6:
            return self.number()
        if roll < 0.75:
            return self.string(self.name() if self.chance(0.5) else random.choice(("a", "b", "red")))
        if roll < 0.85:
            return random.choice(("true", "false", "null", "[]", "{}"))
        if roll < 0.91:
            make = random.choice((self.number, lambda: self.string(random.choice("abc")), lambda: "true"))
            values = [make() if self.chance(0.97) else self.value() for _ in range(random.randrange(1, 4))]
            return self.list(values)
        if roll < 0.97:
            return self.list([self.element(depth + 1, typed) for _ in range(random.randrange(1, 4))])
        if depth > 1 and self.chance(0.1):
            levels = random.choice((13, 14, 15, 16))
            return '{"":' * levels + "1" + "}" * levels
        names = [self.name() for _ in range(random.randrange(3))]
        return self.object([(name, self.feature(depth + 1, typed)) for name in names])

    def element(self, depth: int, typed: bool) -> str:
        """An element of a list of objects, sometimes a named value."""
        roll, random = self.random.random(), self.random
        if roll < 0.05:
            return random.choice(("null", "null", "{}", "NaN" if typed else "[]", '"NaN"', self.value()))
        value = self.feature(depth, typed) if self.chance(0.4) else f"{random.randint(-9, 9)}"
        if roll < 0.6:
            return self.object([(random.choice("abc"), value), *([(self.name(), "2")] * self.chance(0.5))])
        if self.chance(0.3):
            others = [(random.choice("st"), self.number() if self.chance(0.1) else "null")] * self.chance(0.7)
            value = self.object([("s", value), *others][:: random.choice((1, -1))])
        key = json.dumps(random.choice("abc")) if self.chance(0.9) else self.number()
        members = [(random.choice(("key", "name")), key), ("value", value)]
        members += [(random.choice(("key", "name", "c")), self.number())] * self.chance(0.1)
        return self.object(members[:: random.choice((1, -1))])

    def mark(self, raw: bytes) -> bytes:
        """The text, sometimes after a byte order mark."""
        return BOM_UTF8 + raw if self.chance(0.03) else raw

    def typed_value(self) -> str:
        """A value that a type may read in another way, mostly well-formed."""
        roll, random = self.random.random(), self.random
        if roll < 0.1:
            return random.choice(('""', "null", "true", "false", "NaN", '"NaN"', '"Infinity"', '"nan"', "[]"))
        if roll < 0.35:
            text = random.choice(NO_NUMBERS) if self.chance(0.2) else self.number()
            return self.string(random.choice((" ", "", "0")) + text if self.chance(0.1) else text)
        if roll < 0.5:
            return random.choice((self.number(), f"{random.randint(-9, 99)}", f"{random.randint(-9, 9)}.0"))
        parts = [random.choice((0, 1, 1900, 1969, 2000, 2023, 2024, 2100, 9999, random.randrange(10_000)))]
        parts += [random.randint(not self.chance(0.03), most + self.chance(0.03)) for most in (12, 31)]
        parts += [random.randint(0, most + self.chance(0.03)) for most in (23, 59, 60)]
        if roll < 0.6:
            return self.list([f"{part}" for part in parts[: random.choice((3, 3, 4, 5, 6, 6, random.randint(0, 6)))]])
        if roll < 0.8:
            epoch = random.choice(
                (str(10 ** random.randint(7, 20)), str(random.randrange(10 ** random.randint(8, 20))))
            )
            epoch += random.choice(("", "", ".5", ".0", "e1"))
            return epoch if self.chance(0.5) else self.string(epoch)
        year, month, day, hour, minute, second = [f"{parts[0]:04}", *(f"{part:02}" for part in parts[1:])]
        dash, colon = random.choice(("--", "--", "--", "")), random.choice((":", ":", ""))
        text = dash[:1].join((year, month, day)) + random.choice(("", "T", "T", " ", "t"))
        if text[-1] in "Tt ":
            text += colon.join((hour, minute, second)[: random.choice((1, 2, 3, 3, 3))])
            text += random.choice(("", "", "", ".5", ",25", ".123456789", "."))
            text += random.choice(("", "Z", "z", "+02:00", "-0330", "+14", "-23:59", "+24:00", " Z"))
        return self.string(self.mutate(text.encode()).decode(errors="replace") if self.chance(0.1) else text)

    def mutate(self, raw: bytes) -> bytes:
        """Return the bytes, sometimes with one or more mutations."""
        if self.chance(0.02):
            raw = self.random.choice(self._past)
        if self.chance(0.7):
            self._past = [*self._past[-20:], raw]
            return raw
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            raw = self._mutate_once(raw)
        return raw

    def cut(self, raw: bytes) -> tuple[bytes, bytes, bytes]:
        """Split the bytes into three parts, of which the middle one is short."""
        start = self.random.randint(0, len(raw))
        end = min(len(raw), start + self.random.choice((0, 1, 1, 2, 5, 20)))
        return raw[:start], raw[start:end], raw[end:]

    def _mutate_once(self, raw: bytes) -> bytes:
        """Return the bytes with some flipped, replaced, removed or doubled, or with others inserted or appended."""
        before, middle, after = self.cut(raw)
        flipped = bytes(b ^ 1 << self.random.randrange(8) for b in middle)
        token, past = self.random.choice(TOKENS), self.random.choice(self._past)
        return self.random.choice((
            before + flipped + after, before + flipped + after, before + token + middle + after,
            before + token + after, before + after, before + middle + middle + after, before,
            raw + self.random.choice(TRAILING), before + self.cut(past)[2],
        ))  # fmt: skip
