"""Records that are vectors: positional features and a label, doubles as they stand in the bytes."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.compiled import compiled
from service.learning.forms import doubles
from service.learning.identity import MAX_VALUE, Identity
from service.learning.joined import Joined
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
        right = (values.begins >= 0) & (values.ends - values.begins == 8 * self._width)
        if self._identity.event.where:  # a vector has nothing that it could mean
            right[:] = False
        begins = values.begins[right]
        raw = np.empty((len(begins), 8 * self._width), np.uint8)
        _gather(values.data, begins, raw)
        found = raw.view("<f8")
        features, labels = np.ascontiguousarray(found[:, :-1]), found[:, -1]
        places = np.searchsorted(self._labels, labels).clip(max=len(self._labels) - 1)
        good = (self._labels[places] == labels) & (np.abs(features) <= MAX_VALUE).all(1)
        if not good.all():
            features, places = features[good], places[good]
        count, width = features.shape
        starts = np.arange(count + 1, dtype=np.uint64) * np.uint64(width)
        return Rows(
            _NO_BYTES, _NO_BYTES, np.empty((0, 2), np.int64), np.empty(0, np.uint64), features.ravel(),
            np.ones(features.size, np.bool_), starts, self._signs[places], np.ones(count),
            np.flatnonzero(right)[good], np.empty(0, np.int64),
        )  # fmt: skip


def _is_double(label: Any) -> bool:
    return isinstance(label, float) or (isinstance(label, int) and abs(label) < MAX_VALUE and float(label) == label)


@compiled
def _gather(data: NDArray[np.uint8], begins: NDArray[np.int64], found: NDArray[np.uint8]) -> None:
    for i in range(len(begins)):
        for j in range(found.shape[1]):
            found[i, j] = data[begins[i] + j]
