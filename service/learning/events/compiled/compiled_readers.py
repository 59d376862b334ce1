"""The compiled readers of a buffer of values: JSON, and vectors of doubles (positional features, then a label).

If a reader declines a value, the careful reader reads it, and the pass goes on after it.
"""

import math
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from ctypes import string_at
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from service.learning.columns import name_table
from service.learning.columns.name_table import PADDING_BYTES, SEED, NameTable
from service.learning.events.careful_reader import CarefulReader
from service.learning.events.compiled import json_parser, path_tree
from service.learning.events.compiled.json_parser import IGNORED, KINDS, NULL_LABEL, NULLABLE, OPTIONAL, REQUIRED
from service.learning.events.compiled.path_tree import FEATURES, LABEL, WHERE, Codes, Paths, UnsupportedError
from service.learning.events.flatten import Flattener
from service.learning.events.json_values import Path
from service.learning.events.read_events import Event, EventIds, FeatureRows, ReadEvents, TimeBudget
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import MAX_VALUE, Identity
from service.learning.jit import compiled, double_at

MAX_KEPT_FEATURES = 600_000
"""Buffers for at most this many features are kept for the next slice. An event of 1 MiB needs 524,416."""
MAX_KEYS = 1 << 16
"""Names whose kinds the reader remembers."""
NO_BYTES = np.empty(0, np.uint8)
_NO_FEATURES: tuple[NDArray[Any], ...] = (
    np.empty((0, 2), np.int64), np.empty(0, np.uint64), np.empty(0), np.empty(0, np.bool_)
)  # fmt: skip
"""Offsets and sizes of names, hashes, values, and whether these are numbers."""


Rules = tuple[bool, bool, bool, bool]
"""Whether a value must have features, and an id; whether one without features is skipped, and one without a label."""
ReadCarefully = Callable[[int], Event | None]
"""Reads the value at an index; None if there is no event."""


class RowReader:
    """Reads the events or the instances of one model; raises UnsupportedError if only the careful reader can."""

    def __init__(
        self, flattener: Flattener, paths: Paths, expected: list[Codes], max_bytes: int, label: float,
        rules: Rules = (True, False, False, False),
    ) -> None:  # fmt: skip
        """`paths` lead to the parts of a value, from FEATURES on; `expected` has the values allowed at each part.

        `label` is REQUIRED, NULLABLE, OPTIONAL or IGNORED, see `json_parser`.
        """
        identity, parts = flattener.identity, [path for path in paths if path is not None]
        nested = any(path[: len(part)] == part for part in parts[1:] for path in parts if path != part)
        shared = sum(path in paths[LABEL:WHERE] for path in paths[WHERE:])
        if nested or len(set(parts)) + shared < len(parts) or (identity.dimension or 0) > identity.max_features:
            raise UnsupportedError
        tree = path_tree.path_tree(paths)
        conditions = [len(paths) - 1 - paths[::-1].index(path) if path in paths[WHERE:] else -1 for path in paths]
        self._paths = tree.nodes, tree.names, np.array(conditions)
        self._expected = path_tree.expected_values(expected)
        self._identity, self._flattener = identity, flattener
        self._max_bytes, self._min_label, self._rules = max_bytes, label, rules
        self._dimension = (identity.dimension or 0) if identity.features == "positional" else -1
        self._text = ("category", "ignore", "reject", "number").index(identity.text), bool(identity.event.nan)
        self._keys, self._kinds = NameTable(), np.zeros(64, np.int8)
        self._table = np.zeros((4 * json_parser.MAX_MEMBERS, 2), np.uint64)
        self._state = np.zeros(9, np.int64)
        self._features, self._scratch = _NO_FEATURES, NO_BYTES

    @classmethod
    def for_records(cls, careful: CarefulReader) -> Self:
        """A reader of the records that a careful reader reads."""
        identity = careful.identity
        allowed = [{(value.__class__ is bool, value): 1.0 for value in values} for values in careful.where.values()]
        reads_labels = careful.paths[FEATURES] is None
        label = OPTIONAL if careful.may_lack_label else NULLABLE if reads_labels else REQUIRED
        labels = careful.signs if label == REQUIRED else careful.signs | {(True, None): NULL_LABEL}
        rules = not reads_labels, identity.needs_ids, careful.skips_others, careful.skips_unlabelled
        if careful.paths[LABEL] is None:
            label = IGNORED
        expected = [{}, labels, {}, {}, *allowed]
        return cls(careful.flattener, careful.paths, expected, identity.max_record_bytes, label, rules)

    @classmethod
    def for_instances(cls, flattener: Flattener, path: Path, max_bytes: int) -> Self:
        """A reader of instances with features at `path`. Label, weight and id in them are not features."""
        paths = path, *((*path, *part) for part in flattener.excluded)
        return cls(flattener, paths, [{}] * WHERE, max_bytes, IGNORED)

    def read(
        self, values: ValueBuffer, read_carefully: ReadCarefully, time_is_up: TimeBudget = None, marks: bool = False
    ) -> ReadEvents:
        """The events among these values. `read_carefully` reads each value that the parser declines.

        With `marks` a value may begin with a byte order mark.
        The result has no rejects, and no skipped values but those that the parser skips.
        """
        identity, count, state = self._identity, len(values), self._state
        size = int(values.ends[-1] - values.begins[0]) if count else 0
        if size > self._max_bytes:  # it includes the bytes between the values, which may be many
            size = int(np.clip(values.ends - values.begins, 0, self._max_bytes).sum())
        state[: json_parser.GENERATION] = 0
        # A member takes at least four bytes, and makes at most two features.
        most = min(size // 4 + 64, count * max(self._dimension, 2 * json_parser.MAX_MEMBERS))
        if most > len(self._features[0]):
            self._make_room(most)
        self._scratch = name_table.room(self._scratch, 0, 2 * size + 4096 + PADDING_BYTES)
        data, begins, ends = _with_padding(values)
        address, buffers = data.ctypes.data, [data, self._scratch]
        events = np.empty((2, count)), np.zeros((5, count + 1), np.int64)
        while state[json_parser.NEXT] < count:
            keys = self._keys.table[:4]
            json_parser.parse_values(
                address, begins, ends, self._max_bytes, identity.max_features, identity.max_name_bytes, self._dimension,
                self._text, self._flattener.reads_by_name, self._min_label, self._rules, SEED, self._paths,
                self._expected, keys, self._kinds, self._table, state, self._scratch, self._features, events,
            )  # fmt: skip
            if state[json_parser.STATUS] == json_parser.USUAL:
                break
            if state[json_parser.STATUS] == json_parser.UNKNOWN_KEY and len(self._keys) < MAX_KEYS:
                self._remember(string_at(address + int(state[json_parser.KEY]), int(state[json_parser.KEY_SIZE])))
                continue
            record = int(state[json_parser.NEXT])
            if marks and data[begins[record]] == BOM_UTF8[0]:
                marks, begins = False, self._after_marks(data, begins, ends)
                continue
            state[json_parser.NEXT] += 1
            if (event := read_carefully(record)) is not None:
                self._append(event, record, events, buffers)
            if time_is_up is not None and time_is_up():
                break
        n, skipped, end = (state.item(i) for i in (json_parser.EVENTS, json_parser.SKIPPED, json_parser.VALUES))
        (labels, weights), positions = events
        if self._min_label < REQUIRED:
            labels[labels < REQUIRED] = math.nan
        names, hashes, features, is_number = (part[:end] for part in self._features)
        starts, records, passed_over = positions[0, : n + 1].astype(np.uint64), positions[1, :n], positions[2, :skipped]
        rows = FeatureRows(address, buffers, names, hashes, features, is_number, starts)
        ids = EventIds(address, buffers, positions[3:, :n])
        if len(self._features[0]) > MAX_KEPT_FEATURES:
            self._features, self._scratch = _NO_FEATURES, NO_BYTES
        return ReadEvents(rows, labels[:n], weights[:n], ids, records.tolist(), passed_over.tolist(), [])

    def _after_marks(self, data: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.int64]:
        """Where values begin without their byte order marks."""
        size = len(BOM_UTF8)
        starts = data[begins[:, None] + np.arange(size)] == np.frombuffer(BOM_UTF8, np.uint8)
        is_short = (begins >= 0) & (begins + size <= ends) & (ends - begins <= self._max_bytes)
        return np.where(starts.all(axis=1) & is_short, begins + size, begins)

    def _remember(self, key: bytes) -> None:
        """Remember the kind of a name: whether the patterns select it, and its type."""
        name, patterns = key.decode(), self._flattener.patterns
        self._keys.add([name])
        self._kinds = name_table.room(self._kinds, len(self._keys), len(self._keys) + 1)
        selected = patterns is None or patterns.select(name)
        self._kinds[len(self._keys)] = KINDS[self._flattener.type_of(name)] if selected else json_parser.LEFT_OUT

    def _append(self, event: Event, record: int, events: Sequence[NDArray[Any]], buffers: list[NDArray[Any]]) -> None:
        """Add an event from the careful reader, and the array with its names and its id."""
        state, features = self._state, event.features
        n, begin = int(state[json_parser.EVENTS]), int(state[json_parser.VALUES])
        end = begin + len(features)
        self._make_room(end)
        names, hashes, values, is_number = (part[begin:end] for part in self._features)
        texts = name_table.encode_names([*(features if isinstance(features, dict) else ()), event.id or ""])
        address = buffers[0].ctypes.data
        buffers.append(texts.text)
        offsets, sizes = texts.text.ctypes.data - address + texts.ends[:-1], np.diff(texts.ends)
        if isinstance(features, dict):
            names[:, 0], names[:, 1] = offsets[:-1], sizes[:-1]
            name_table.hash_each(address, names, hashes, SEED)
            values[:] = [*features.values()]
            is_number[:] = [value.__class__ is float for value in features.values()]
        else:
            values[:] = features
        figures, positions = events
        figures[:, n], positions[0, n + 1], positions[1, n] = (event.label, event.weight), end, record
        positions[3:, n] = offsets[-1], -1 if event.id is None else sizes[-1]
        state[json_parser.EVENTS], state[json_parser.VALUES] = n + 1, end

    def _make_room(self, count: int) -> None:
        """Make the buffers long enough for `count` features."""
        self._features = tuple(name_table.room(part, self._state[json_parser.VALUES], count) for part in self._features)


def _with_padding(values: ValueBuffer) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The values' buffer with PADDING_BYTES zeros at its end, where every scan stops; where values begin and end."""
    data, begins, ends = values.data, values.begins, values.ends
    end = int(ends[-1]) if len(values) else 0
    if end + PADDING_BYTES <= len(data) and not data[-PADDING_BYTES:].any():
        return data, begins, ends
    first = max(int(begins.min(initial=end)), 0)
    data = np.concatenate([data[first:end], np.zeros(PADDING_BYTES, np.uint8)])
    return data, np.where(begins < 0, -1, begins - first), ends - first


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
        count = _read_vectors(address, begins, ends, self._labels, self._signs, features, labels, records)
        for i in np.delete(np.arange(len(values)), records[:count]).tolist():
            read_carefully(i)
        starts, no_names = np.arange(count + 1, dtype=np.uint64) * np.uint64(width), np.empty((0, 2), np.int64)
        values_, is_number = features[:count].ravel(), np.ones(count * width, np.bool_)
        rows = FeatureRows(0, (), no_names, np.empty(0, np.uint64), values_, is_number, starts)
        return ReadEvents(rows, labels[:count], np.ones(count), [None] * count, records[:count].tolist(), [], [])


def _is_double(label: Any) -> bool:
    return isinstance(label, float) or (isinstance(label, int) and abs(label) < MAX_VALUE and float(label) == label)


@compiled
def _read_vectors(
    data: int, begins: Any, ends: Any, labels: Any, signs: Any, features: Any, truth: Any, records: Any
) -> int:
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
