"""Events as rows of features whose names have no columns yet: the compiled pass of `reader`, driven.

Where it stops at a record, whoever reads all of the format is asked, and the pass goes on behind it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning import reader
from service.learning.features import Features, Flattener
from service.learning.identity import Identity
from service.learning.joined import Joined
from service.learning.names import BEHIND, SEED, Names, Spelled, gather, hash_each, spelled
from service.learning.places import way
from service.learning.ways import UnsuitedError, wanted, ways

KEPT_FEATURES = 600_000
"""Memory for so many is kept from slice to slice. One of 1 MiB asks for 524,416, a larger event for more."""
MOST_KEYS = 1 << 16
"""So many names are remembered as meant by the patterns, or not."""

Read = tuple[Features, float, float]
"""An event as `events` reads it: features, the label's sign, weight."""


class Rows(NamedTuple):
    """Event i has the features `starts[i]` to before `starts[i + 1]`.

    `names` say where the name of a feature begins, and its size: in `data`, or where that is below 0 at -1 - begin of
    `scratch`; `hashes` are of these. Positional features have `values` alone.
    """

    data: NDArray[np.uint8]
    scratch: NDArray[np.uint8]
    names: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    values: NDArray[np.float64]
    is_number: NDArray[np.bool_]
    starts: NDArray[np.uint64]
    signs: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: NDArray[np.int64]
    """The place of each event among the values."""
    skipped: NDArray[np.int64]
    """Those that `where` passes over."""

    def names_of(self, features: NDArray[np.int64]) -> Spelled:
        """The names of these features."""
        names = self.names[features]
        ends = np.concatenate([[0], names[:, 1].cumsum()])
        gathered = np.empty(ends[-1] + BEHIND, np.uint8)
        gather(self.data.ctypes.data, self.scratch.ctypes.data, names, gathered)
        return Spelled(gathered, ends, len(names))


def name_at(data: NDArray[np.uint8], scratch: NDArray[np.uint8], begin: int, size: int) -> str:
    """A name that is in `data`, or where it begins below 0 in `scratch`."""
    text = data[begin : begin + size] if begin >= 0 else scratch[-1 - begin : size - 1 - begin]
    return text.tobytes().decode(errors="surrogatepass")


class Reader:
    """Reads the events of one model; raises UnsuitedError where they are for `events` alone."""

    def __init__(self, identity: Identity, signs: dict[tuple[bool, Any], float]) -> None:
        event = identity.event
        if (identity.dimension or 0) > identity.max_features:
            raise UnsuitedError
        places = [event.features, event.label, event.weight, event.id, *event.where]
        allowed = [{(value.__class__ is bool, value): 1.0 for value in values} for values in event.where.values()]
        nodes, way_names = ways([None if one is None else way(one) for one in places])
        firsts, numbers, ends, codes, strings, literals = wanted([{}, signs, {}, {}, *allowed])
        self._ways = nodes, way_names.ctypes.data
        self._wanted = firsts, numbers, ends, codes, strings.ctypes.data, literals
        self._kept = way_names, strings
        """What is known to the compiled loop by its address."""
        self._patterns = Flattener(identity).patterns
        self._keys, self._meant = Names(), np.zeros(64, np.bool_)
        self._limits = (
            identity.max_record_bytes, identity.max_features, identity.max_name_bytes,
            (identity.dimension or 0) if identity.features == "positional" else -1,
            ("category", "ignore", "reject").index(identity.text), self._patterns is not None,
        )  # fmt: skip
        self._table = np.zeros((4 * reader.MOST_MEMBERS, 2), np.uint64)
        self._state = np.zeros(9, np.int64)
        self._let_go()

    def _let_go(self) -> None:
        """Have no memory for features; who has some of it goes on to."""
        self._scratch = np.empty(0, np.uint8)
        self._features: tuple[NDArray[Any], ...] = (
            np.empty((0, 2), np.int64), np.empty(0, np.uint64), np.empty(0), np.empty(0, np.bool_)
        )  # fmt: skip
        """Where names are, hashes, values, whether these are numbers."""

    def read(
        self, values: Joined, otherwise: Callable[[int], Read | None], enough: Callable[[], bool] | None = None
    ) -> Rows:
        """The events among these values. Of a record that is not usual `otherwise` is asked, which returns what is read
        there, or None where that is no event; and then `enough`, whether the rest is to be left. Others take no time.
        """
        most, _, _, dimension, *_ = self._limits
        count = len(values)
        size = int(values.ends[-1] - values.begins[0]) if count else 0
        if size > most:  # with what is between them, which may be much
            size = int(np.clip(values.ends - values.begins, 0, most).sum())
        state = self._state
        state[: reader.GENERATION] = 0
        # A member takes four bytes at least, and makes two features at most.
        self._make_room(min(size // 4 + 64, count * max(dimension, 2 * reader.MOST_MEMBERS)), 2 * size + 4096)
        data, begins, ends = _with_room(values)
        events = np.empty((2, count)), np.zeros((3, count + 1), np.int64)
        while state[reader.NEXT] < count:
            keys = self._keys.table[:4]
            reader.read(
                data.ctypes.data, begins, ends, *self._limits, SEED, self._ways, self._wanted, keys, self._meant,
                self._table, state, self._scratch, self._features, events,
            )  # fmt: skip
            if state[reader.STATUS] == reader.USUAL:
                break
            if state[reader.STATUS] == reader.UNKNOWN_KEY and len(self._keys) < MOST_KEYS:
                key = state[[reader.KEY, reader.KEY_SIZE]].tolist()
                self._remember(name_at(data, self._scratch, *key))
                continue
            record = int(state[reader.NEXT])
            state[reader.NEXT] += 1
            if (read := otherwise(record)) is not None:
                self._append(read, record, events)
            if enough is not None and enough():
                return self._rows(data, events, record + 1)
        return self._rows(data, events, count)

    def _rows(
        self, data: NDArray[np.uint8], events: tuple[NDArray[np.float64], NDArray[np.int64]], before: int
    ) -> Rows:
        """The events among the records before this one."""
        (signs, weights), (starts, records, passed_over) = events
        n = int(np.searchsorted(records[: self._state[reader.EVENTS]], before))
        skipped = int(np.searchsorted(passed_over[: self._state[reader.SKIPPED]], before))
        features = int(starts[n])
        names, hashes, values, is_number = (part[:features] for part in self._features)
        rows = Rows(
            data, self._scratch, names, hashes, values, is_number, starts[: n + 1].astype(np.uint64), signs[:n],
            weights[:n], records[:n], passed_over[:skipped],
        )  # fmt: skip
        if len(self._features[0]) > KEPT_FEATURES:
            self._let_go()
        return rows

    def _remember(self, key: str) -> None:
        """Whether a name is meant."""
        assert self._patterns is not None  # noqa: S101 - else nobody asks
        self._keys.add([key])
        if len(self._meant) <= len(self._keys):
            self._meant = np.concatenate([self._meant, np.zeros_like(self._meant)])
        self._meant[len(self._keys)] = self._patterns.take(key)

    def _append(self, read: Read, record: int, events: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
        state, (found, sign, weight) = self._state, read
        n, at, used = (int(state[i]) for i in (reader.EVENTS, reader.VALUES, reader.SCRATCH))
        end = at + len(found)
        given = spelled([*found] if isinstance(found, dict) else [])
        more = int(given.ends[-1])
        self._make_room(end, used + more)
        names, hashes, values, is_number = self._features
        if isinstance(found, dict):
            self._scratch[used : used + more] = given.text[:more]
            names[at:end, 0], names[at:end, 1] = -1 - used - given.ends[:-1], np.diff(given.ends)
            hash_each(self._scratch.ctypes.data, names[at:end], hashes[at:end], SEED)
            values[at:end] = [*found.values()]
            is_number[at:end] = [value.__class__ is float for value in found.values()]
        else:
            values[at:end] = found
        (figures, places) = events
        figures[:, n], places[0, n + 1], places[1, n] = (sign, weight), end, record
        state[reader.EVENTS], state[reader.VALUES], state[reader.SCRATCH] = n + 1, end, used + more

    def _make_room(self, features: int, scratch: int) -> None:
        used = self._state[reader.VALUES], self._state[reader.SCRATCH]
        if features > len(self._features[0]):
            self._features = tuple(_longer(part, 2 * features, used[0]) for part in self._features)
        if scratch + BEHIND > len(self._scratch):
            self._scratch = _longer(self._scratch, 2 * (scratch + BEHIND), used[1])


def _longer(array: NDArray[Any], count: int, used: int) -> NDArray[Any]:
    """With the values that are used; memory behind them is not touched, and so not taken."""
    longer = np.empty((count, *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer


def _with_room(values: Joined) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """These values' buffer, where they begin and end there, with BEHIND bytes at least behind the last of them."""
    end = int(values.ends[-1]) if len(values) else 0
    if end + BEHIND <= len(values.data):
        return values.data, values.begins, values.ends
    first = max(int(values.begins.min(initial=end)), 0)
    data = np.concatenate([values.data[first:], np.zeros(BEHIND, np.uint8)])
    return data, np.where(values.begins < 0, -1, values.begins - first), values.ends - first
