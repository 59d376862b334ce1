"""Reads a slice of records that are vectors of doubles: positional features, then a label."""

import math
from typing import Any

import numpy as np

from service.learning.events.compiled.path_tree import Codes
from service.learning.events.compiled.row_reader import ReadCarefully
from service.learning.events.read_events import FeatureRows, ReadEvents
from service.learning.events.value_buffer import ValueBuffer
from service.learning.identity import MAX_VALUE, Identity
from service.learning.jit.intrinsics import double_at
from service.learning.jit.jit import compiled


class VectorReader:
    """Reads the vectors of one model, whose labels have these signs."""

    def __init__(self, identity: Identity, signs: Codes) -> None:
        self._skips, self._dimension = bool(identity.event.where), identity.dimension or 0
        numbers = sorted((float(x), sign) for (is_bool, x), sign in signs.items() if not is_bool and _is_double(x))
        self._labels, self._signs = np.array(numbers or [(math.nan, math.nan)]).T.copy()

    def read(self, values: ValueBuffer, read_carefully: ReadCarefully, *_: Any) -> ReadEvents:
        """The events of a slice of vectors. `read_carefully` reads the other values, which are bad or skipped."""
        # A vector has nothing that `where` could match.
        count, width = 0 if self._skips else len(values), self._dimension
        features, labels, records = np.empty((count, width)), np.empty(count), np.empty(count, np.int64)
        address, begins, ends = values.data.ctypes.data, values.begins, values.ends
        count = _read(address, begins, ends, self._labels, self._signs, features, labels, records)
        for i in np.delete(np.arange(len(values)), records[:count]).tolist():
            read_carefully(i)
        starts, no_names = np.arange(count + 1, dtype=np.uint64) * np.uint64(width), np.empty((0, 2), np.int64)
        values_, is_number = features[:count].ravel(), np.ones(count * width, np.bool_)
        rows = FeatureRows(0, (), no_names, np.empty(0, np.uint64), values_, is_number, starts)
        return ReadEvents(rows, labels[:count], np.ones(count), [None] * count, records[:count].tolist(), [], [])


def _is_double(label: Any) -> bool:
    return isinstance(label, float) or (isinstance(label, int) and abs(label) < MAX_VALUE and float(label) == label)


@compiled
def _read(data: int, begins: Any, ends: Any, labels: Any, signs: Any, features: Any, truth: Any, records: Any) -> int:
    """Fill in the features, the label's sign and the index of each good event; returns how many there are."""
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
        k = min(np.searchsorted(labels, label), len(labels) - 1)
        if good and labels[k] == label:
            truth[count], records[count] = signs[k], i
            count += 1
    return count
