"""Hints for rejections: what an unreadable text or value probably is, and how to send it."""

import json
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from typing import Any

MAX_CHARACTERS = 100_000
"""A longer text has no hint: finding it would hold the event loop."""
MAX_LABEL_CHARACTERS, MAX_LABELS = 100, 20
"""A longer label, or one of more labels, is not compared with the others: each rejection would cost much."""
_CURRENCY = r"(?:[$€£¥]|EUR|USD|GBP|CHF)"
_DIGITS = r"(?=[\d.,])(?:\d{1,3}(?:[.,'\s]\d{3})+|0|[1-9]\d*)?(?:[.,]\d+)?"
_DECIMALS = 'base64, as Debezium writes decimals: set decimal.handling.mode = "string" in its connector'
_TABLE = "CSV: send JSON, which `perceptron produce` makes of a CSV file"
_HINTS = {
    r'\{\s*("[^"]*"\s*:.*)?\}|\[.*\]|"[{\[].*[}\]]"': "JSON inside a string: send the JSON itself",
    rf"(?=.{{1,40}}$)[-+]?{_CURRENCY}?\s?[-+]?{_DIGITS}\s?(?:%|{_CURRENCY})?": "numbers in text: send JSON numbers",
    r"(?:[A-Za-z0-9+/]{4}){0,5}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)": _DECIMALS,
    r"[^,;\t\n]+([,;\t])(?!\s)[^,;\t\n]*(\1(?!\s)[^,;\t\n]*)+": _TABLE,
}
"""What to say about a text by its pattern; the first that matches counts. None of them backtracks much."""
_MATCHES = [(re.compile(pattern, re.DOTALL).fullmatch, hint) for pattern, hint in _HINTS.items()]
_MEANINGS = dict.fromkeys(("t", "1", "yes", "y"), "true") | dict.fromkeys(("f", "0", "no", "n"), "false")
_SET_LABELS = 'set labels, such as ["false", "true"], or [["f", false, 0], ["t", true, 1]] for several spellings'


def text_hint(text: Any) -> str:
    """What a text probably is, and what to do; "" if it is not known, or the value is not text.

    >>> [text_hint(text).partition(":")[0] for text in ("3.568,48", "€ 12.00", '{"a": 1}', "31;NL;1", "02134", "NL")]
    ['numbers in text', 'numbers in text', 'JSON inside a string', 'CSV', '', '']
    """
    text = text.strip() if isinstance(text, str) and len(text) <= MAX_CHARACTERS else ""
    return next((hint for match, hint in _MATCHES if match(text)), "")


def encoding_hint(raw: bytes) -> str:
    """A hint about bytes that are not JSON in UTF-8 (gzip, UTF-16), by the first four of them; "" if there is none."""
    if raw.startswith(b"\x1f\x8b"):
        return "the value is compressed by gzip: send the JSON itself, and let the producer compress batches"
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or (raw[:4:2] == b"\0\0") != (raw[1:4:2] == b"\0\0"):
        return "the value is UTF-16: send JSON in UTF-8"
    return ""


def in_brackets(text: Any) -> str:
    """The hint about a text as the end of a message."""
    return f" ({hint})" if (hint := text_hint(text)) else ""


def spelling(value: Any) -> str:
    """A value as text, without what people overlook: case, outer and repeated blanks, and the form of Unicode.

    >>> spelling(" Zoe\\u0308  Smith") == spelling("zo\\u00eb smith"), spelling(True)
    (True, 'true')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def label_meaning(label: Any) -> str:
    """What a label means, however it is spelled: `true` for t, 1, yes and y, `false` for f, 0, no and n."""
    return _MEANINGS.get(text := spelling(label), text)


def label_hint(label: Any, labels: Sequence[Any]) -> str:
    """The end of a message about a label that is not one of `labels`: what to set if it is another spelling of one."""
    is_short = isinstance(label, str) and len(label) <= MAX_LABEL_CHARACTERS and len(labels) <= MAX_LABELS
    if not is_short or label_meaning(label) not in map(label_meaning, labels):
        return ""
    return f", got another spelling of one of them: {_SET_LABELS}"
