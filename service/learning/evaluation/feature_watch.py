"""Whether events still have the features that they usually have, with values of the same kind."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.learning.columns.columns import Batch, Columns, Named
from service.learning.events.flatten import Features
from service.learning.jit import compiled
from service.learning.records import PartitionId, Place

MAX_FEATURES = 4096
"""Features beyond this number are not watched."""
MAX_USUAL, MAX_CHANGES = 256, 100
"""The most usual features, and changes of a kind, that are kept: each head has their names."""
WINDOW_EVENTS = 1000
"""A feature is usual once nine of ten events of a window have it, and missing while fewer than half have it."""
BLOCK_VALUES, BLOCKS = 100, 10
"""The values that fill a block, and the blocks that are remembered.

A feature changes its kind if 90 % of a block's values have one kind, and 90 % of those in the blocks before another."""
_VALUES, _TEXTS, _KIND, _TURNED, _SEEN, _EVENTS, _IS_USUAL, _IS_MISSING, _FILLED, _PERCENTS = range(10)
"""The figures of a feature, each an index of its row: the values in this block, and how many of them are text; the kind
of the last value (0 a number, 1 text), the event at which this kind began, and the last event with the feature; the
events in this window that have it, whether it is usual, and whether it is missing; the number of filled blocks; from
_PERCENTS on, of the values in each of the last blocks, how many percent were text."""


class KindChange(NamedTuple):
    """The kind that a feature's values have now, number or text, and the first record where they have it."""

    kind: str
    partition: PartitionId
    offset: int


class FeatureFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of features; those of a nested object have dots. All categories of a string are one feature."""

    usual: tuple[str, ...] = ()
    """Features that most events of a window had."""
    missing: tuple[str, ...] = ()
    """Usual features that most events of the last window lack."""
    changes: dict[str, KindChange] = {}
    """The first change of each feature's kind."""


class FeatureWatch:
    """Watches the features of a model that names them. Values before a restart are not remembered, figures are."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """The number of each watched feature, from 1 on."""
        self._features = np.zeros((MAX_FEATURES + 1, _PERCENTS + BLOCKS), np.int64)
        self._slots = np.zeros(0, np.uint32)
        """For each column twice its feature's number, plus 1 for a category; 0 if not looked up, 1 if not watched."""
        self._unknown, self._turned, self._changed = np.zeros((3, MAX_FEATURES), np.int64)
        self._events = 0
        self._turns: dict[int, tuple[PartitionId, int]] = {}
        self.figures, self._usual = FeatureFigures(), frozenset[str]()

    def restore(self, figures: FeatureFigures) -> None:
        """Take over figures, as those of a snapshot."""
        self.figures, self._usual = figures, frozenset(figures.usual)
        for name in figures.usual:
            self._features[self._slot(name) >> 1, _IS_USUAL] = 1

    def follow(self, batch: Batch, columns: Named, place: Place) -> None:
        """Add learned events, whose new names are columns by now."""
        count, room, begin = len(columns), len(self._slots), self._events
        if room < count:
            self._slots = np.concatenate([self._slots, np.zeros(max(count - room, room), np.uint32)])
        if new := len(batch.names):
            self._slots[count - new : count] = [*map(self._slot, batch.names)]
        out = self._unknown, self._turned, self._changed
        used = len(self._numbers) + 1
        sizes = _follow(batch.starts, batch.columns, self._slots, self._features, used, begin, *out)
        self._events += len(batch.labels)
        if any(sizes):
            unknown, turned, changed = (each[:size].tolist() for each, size in zip(out, sizes, strict=True))
            self._slots[unknown] = [self._slot(columns.name_of(column)) for column in unknown]
            for feature in turned:
                self._turns[feature] = place(batch.records[self._features[feature, _TURNED] - begin - 1])
            for feature in changed[: MAX_CHANGES - len(self.figures.changes)]:
                name, kind = [*self._numbers][feature - 1], ("number", "text")[self._features[feature, _KIND]]
                changes = {name: KindChange(kind, *self._turns[feature])} | self.figures.changes
                self.figures = replace(self.figures, changes=changes)
        if self._events // WINDOW_EVENTS > begin // WINDOW_EVENTS:
            names = [*self._numbers]
            usual, missing = (np.flatnonzero(self._features[:, i]) - 1 for i in (_IS_USUAL, _IS_MISSING))
            kept = tuple(names[i] for i in usual[:MAX_USUAL].tolist())
            # Without a free column, a value of a category may have none, and would look as if it were missing.
            lacking = tuple(names[i] for i in missing.tolist() if names[i] in kept and columns.free)
            self.restore(replace(self.figures, usual=kept, missing=lacking))

    def _slot(self, name: str) -> int:
        feature, is_category, _ = name.partition("=")
        number = self._numbers.get(feature, 0)
        if not number and len(self._numbers) < MAX_FEATURES:
            number = self._numbers[feature] = len(self._numbers) + 1
        return 2 * number + bool(is_category) if number else 1

    def missing_in(self, features: Features) -> int:
        """The number of usual features that these features of a request lack."""
        missing = self._usual and self._usual.difference(names := cast("Mapping[str, float]", features))
        return len(missing and missing.difference(name.partition("=")[0] for name in names))

    def missing_by_event(self, batch: Batch, columns: Columns) -> NDArray[np.int64]:
        """The number of usual features that each event of a batch lacks."""
        usual = {name: i for i, name in enumerate(self._usual)}
        if not usual:
            return np.zeros(len(batch.starts) - 1, np.int64)
        own_columns, places = np.unique(batch.columns, return_inverse=True)
        known = len(own_columns) - len(batch.names)
        names = [*map(columns.name_of, own_columns[:known].tolist()), *batch.names]
        numbers = [usual.get(name.partition("=")[0], len(usual)) for name in names]
        events = np.repeat(np.arange(len(batch.starts) - 1), np.diff(batch.starts).astype(np.int64))
        has = np.zeros((len(batch.starts) - 1, len(usual) + 1), np.bool_)
        has[events, np.array(numbers, np.int64)[places]] = True
        missing: NDArray[np.int64] = len(usual) - has[:, :-1].sum(axis=1)
        return missing


@compiled
def _follow(
    starts: NDArray[np.uint64], columns: NDArray[np.uint32], slots: NDArray[np.uint32], features: NDArray[np.int64],
    used: int, event: int, unknown: NDArray[np.int64], turned: NDArray[np.int64], changed: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """Add events to the `used` rows of `features`; the number of the event before them is `event`.

    Most events have the same features as the one before: then it is enough to count them. Returns how many columns
    without a slot it wrote to `unknown`, features with another kind than before to `turned`, and features whose kind
    has changed to `changed`.
    """
    first, unknown_count, turned_count, changed_count, equal = event, 0, 0, 0, 0
    for i in range(len(starts) - 1):
        begin, end = np.int64(starts[i]), np.int64(starts[i + 1])
        event, equal = event + 1, equal + 1
        size = end - begin
        goes_on = i + 2 < len(starts) and equal < BLOCK_VALUES and event % WINDOW_EVENTS != 0
        if goes_on and starts[i + 2] - starts[i + 1] == size:
            own, following, differ, k = columns[begin:end], columns[end : end + size], np.uint32(0), 0
            for at in range(size):  # without a branch: several columns at a time
                differ |= own[at] ^ following[at]
            if differ:
                while k < size and slots[own[k]] == slots[following[k]]:
                    k += 1
            if not differ or k == size:
                continue
        for j in range(begin, end):
            slot = slots[columns[j]]
            if slot < 2:
                if slot == 0 and unknown_count < len(unknown):
                    unknown[unknown_count] = columns[j]
                    unknown_count += 1
                continue
            feature, kind = features[slot >> 1], np.int64(slot & 1)
            if feature[_KIND] != kind or not feature[_SEEN]:
                if feature[_TURNED] <= first:
                    turned[turned_count] = slot >> 1
                    turned_count += 1
                feature[_KIND] = kind
                feature[_TURNED] = event - equal + 1
            if feature[_SEEN] != event:
                feature[_SEEN] = event
                feature[_EVENTS] += equal
            feature[_TEXTS] += kind * equal
            feature[_VALUES] += equal
            if feature[_VALUES] >= BLOCK_VALUES:
                percent, before = 100 * feature[_TEXTS] // feature[_VALUES], feature[_PERCENTS:].sum()
                is_text = percent >= 90 and before <= 10 * BLOCKS
                is_number = percent <= 10 and before >= 90 * BLOCKS
                if feature[_FILLED] >= BLOCKS and (is_text or is_number):
                    changed[changed_count] = slot >> 1
                    changed_count += 1
                    feature[_FILLED] = 0
                feature[_PERCENTS + feature[_FILLED] % BLOCKS] = percent
                feature[_FILLED] += 1
                feature[_VALUES] = feature[_TEXTS] = 0
        equal = 0
        if event % WINDOW_EVENTS == 0:
            for k in range(used):
                feature = features[k]
                feature[_IS_USUAL] |= 10 * feature[_EVENTS] >= 9 * WINDOW_EVENTS
                feature[_IS_MISSING] = feature[_IS_USUAL] and 2 * feature[_EVENTS] < WINDOW_EVENTS
                feature[_EVENTS] = 0
    return unknown_count, turned_count, changed_count
