"""Records that are vectors: positional features and a label, doubles as they stand in the bytes."""

import math
from typing import Any

import numpy as np

from service.errors import Rejected
from service.learning.compiled import compiled
from service.learning.forms import doubles
from service.learning.identity import MAX_VALUE, Identity
from service.learning.joined import Joined
from service.learning.machine import double_at
from service.learning.rows import Rows

_NO_BYTES = np.empty(0, np.uint8)


class Vectors:
    """Reads those of one model: all of a slice at once, or one by every rule."""

    def __init__(self, identity: Identity, signs: dict[tuple[bool, Any], float]) -> None:
        self._identity, self._width = identity, 1 + (identity.dimension or 0)
        doubles = {float(x): sign for (truth, x), sign in signs.items() if not truth and _is_double(x)}
        known = sorted(doubles.items())
        self._labels, self._signs = (np.array([pair[i] for pair in known] or [math.nan]) for i in (0, 1))

    def parts(self, raw: bytes) -> dict[str, Any]:
        """Features and label of one; raises Rejected."""
        if self._identity.features != "positional":
            detail = f"a vector has no names, and this model's features are {self._identity.features}"
            raise Rejected("wrong-type", detail)
        if len(raw) != 8 * self._width:
            expected = f"{self._width - 1} values and a label, of 8 bytes each"
            raise Rejected("wrong-length", f"expected {expected}; got {len(raw)} bytes")
        *features, label = doubles(raw)
        return {"features": features, "label": label}

    def rows(self, values: Joined) -> Rows:
        """The events of a slice, all of whose values are vectors; those left out are none, or passed over."""
        # Where records are passed over, a vector has nothing that says so.
        count, width = 0 if self._identity.event.where else len(values), self._width - 1
        features, signs, records = np.empty((count, width)), np.empty(count), np.empty(count, np.int64)
        found = values.data.ctypes.data, values.begins, values.ends
        count = _read(*found, self._labels, self._signs, features, signs, records)
        starts = np.arange(count + 1, dtype=np.uint64) * np.uint64(width)
        return Rows(
            _NO_BYTES, _NO_BYTES, np.empty((0, 2), np.int64), np.empty(0, np.uint64), features[:count].ravel(),
            np.ones(count * width, np.bool_), starts, signs[:count], np.ones(count), records[:count],
            np.empty(0, np.int64),
        )  # fmt: skip


def _is_double(label: Any) -> bool:
    return isinstance(label, float) or (isinstance(label, int) and abs(label) < MAX_VALUE and float(label) == label)


@compiled
def _read(data: int, begins: Any, ends: Any, labels: Any, signs: Any, features: Any, own: Any, records: Any) -> int:
    """The features, the label's sign and the place of each event that is one, and how many there are."""
    count, width = 0, features.shape[1]
    for i in range(len(records)):
        begin = begins[i]
        if begin < 0 or ends[i] - begin != 8 * (width + 1):
            continue
        good = True
        for j in range(width):
            value = double_at(data, begin + 8 * j)
            features[count, j] = value
            good &= abs(value) <= MAX_VALUE
        label = double_at(data, begin + 8 * width)
        place = min(np.searchsorted(labels, label), len(labels) - 1)
        if good and labels[place] == label:
            own[count], records[count] = signs[place], i
            count += 1
    return count
