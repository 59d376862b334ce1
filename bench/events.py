"""The streams that are learned, as records of a topic and the settings of its model."""

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

DISTINCT = 20_000
"""Different events of a stream, which repeats them; the widest stream has ZIPF_EVENTS."""
FLIPPED = 0.1
"""The share of labels that are noise; the others follow a separating vector."""


class Stream(NamedTuple):
    """Records that are sent over and over, `events` in all."""

    description: str
    settings: str
    events: int
    values: Callable[[], Sequence[bytes]]
    content_type: str = ""


def dense(columns: int = 20, seed: int = 1) -> tuple[Any, Any]:
    """Values of four decimals, of shape (DISTINCT, columns), and their labels, 0 or 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(DISTINCT, columns)).round(4)
    y = (x @ rng.normal(size=columns) > 0.0) ^ (rng.random(DISTINCT) < FLIPPED)
    return x, y.astype(int)


def zipf(events: int, columns: int = 10**6, draws: int = 120, seed: int = 2) -> list[Any]:
    """About 100 different columns for each event, drawn by Zipf's law."""
    rng = np.random.default_rng(seed)
    shares = np.cumsum(1.0 / np.arange(1, columns + 1))
    draws_by_event = np.searchsorted(shares, rng.random((events, draws)) * shares[-1])
    return [np.unique(row) for row in draws_by_event]


def _lists() -> list[bytes]:
    x, y = dense()
    return [_event(features, label) for features, label in zip(x.tolist(), y.tolist(), strict=True)]


def _objects() -> list[bytes]:
    x, y = dense()
    names = [f"feature_{i:02d}" for i in range(x.shape[1])]
    return [
        _event(dict(zip(names, row, strict=True)), label) for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]


def _words() -> list[bytes]:
    rng = np.random.default_rng(3)
    w = rng.normal(size=10**6)
    values = []
    for columns in zipf(ZIPF_EVENTS):
        x = rng.normal(size=len(columns)).round(4)
        label = bool(x @ w[columns] > 0.0) ^ bool(rng.random() < FLIPPED)
        names = [f"w{column}" for column in columns.tolist()]
        values.append(_event(dict(zip(names, x.tolist(), strict=True)), int(label)))
    return values


def _clicks() -> list[bytes]:
    rng = np.random.default_rng(4)
    values = []
    for i in range(DISTINCT):
        age, price, hour = int(rng.integers(18, 80)), round(float(rng.gamma(2.0, 20.0)), 2), int(rng.integers(24))
        device, country = rng.choice(["phone", "tablet", "desktop"]), rng.choice(["DE", "FR", "US", "IN", "BR"])
        record = {
            "ts": f"2026-01-01T{hour:02d}:{i % 60:02d}:00Z",
            "user": {"id": f"u{rng.integers(1000)}", "country": country, "age": age},
            "item": {"id": f"i{rng.integers(500)}", "price": price},
            "device": device, "hour": hour, "returning": bool(rng.random() < 0.4),
        }  # fmt: skip
        likely = (device == "phone") + (price < 30.0) + record["returning"] >= 2
        record["clicked"] = bool(likely ^ bool(rng.random() < FLIPPED))
        values.append(json.dumps(record, separators=(",", ":")).encode())
    return values


def _packed() -> list[bytes]:
    x, y = dense()
    return [struct.pack("<21d", *row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True)]


def _event(features: Any, label: int) -> bytes:
    return json.dumps({"features": features, "label": label}, separators=(",", ":")).encode()


ZIPF_EVENTS = 30_000
POSITIONAL = '[model]\nfeatures = "positional"\ndimension = 20\n'
CLICKS = '[model.event]\nfeatures = ""\nlabel = "/clicked"\nwithout = ["ts"]\n'
DENSE = Stream("20 dense features", POSITIONAL, 1_000_000, _lists)
NAMED = Stream("20 named features", "", 500_000, _objects)
WORDS = Stream("about 100 of 10⁶ names by Zipf's law", "", 100_000, _words)
HASHED = WORDS._replace(
    description=f"{WORDS.description}, hashed", settings='[model]\nfeatures = "hashed"\nbits = 20\n'
)
NESTED = Stream("nested click records of 10 members with strings", CLICKS, 300_000, _clicks)
COMPACT = Stream("20 dense features as f8", POSITIONAL, 1_000_000, _packed, "application/x-perceptron-f8")
