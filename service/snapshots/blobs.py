"""Arrays and names to immutable blobs, and back. A blob's name is the SHA-256 of its bytes.

base    8,192 columns of an array as little-endian f8 (the last block is shorter)
delta   (column u4, value f8), …, little-endian: written over the base, and over earlier deltas
names   4,096 feature names in column order as a JSON list (the last is shorter)
runs    1,024 runs as (partition u4, from u8, to u8), little-endian; the runs after the last whole blob are in the head

The cuts are fixed, so equal arrays have equal blocks. Which blocks are stored, and what is a delta, is not state.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import SnapshotDamaged

BLOCK_COLUMNS = 8192
BLOCK_NAMES = 4096
BLOCK_RUNS = 1024
"""A block has 64 KB, a blob of names about as much, a blob of runs 20 KB: a small change costs little, and a million
columns are 123 blobs."""
DELTA = np.dtype([("column", "<u4"), ("value", "<f8")])
RUN = np.dtype([("partition", "<u4"), ("from", "<u8"), ("to", "<u8")])

Blobs = Mapping[str, bytes]
"""Blobs by their digests."""
Runs = list[tuple[int, int, int]]
"""(partition, from, to), in the order in which these offsets were learned."""

_names = msgspec.json.Decoder(list[str])


def later_blobs(names: list[str], before: list[str]) -> list[str]:
    """The blobs of a list from its first difference to `before` on: a reader who has `before` fetches these."""
    pairs = zip(names, before, strict=False)
    return names[len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) :]


def digest(blob: bytes) -> str:
    """The name of a blob or head: SHA-256, hexadecimal."""
    return hashlib.sha256(blob).hexdigest()


class Encoded(NamedTuple):
    """An array as the store has it, with what its next save needs."""

    values: NDArray[Any]
    """Doubles, as in the blobs; single precision for the bound's reference."""
    blocks: list[str]
    """The digest of each block. The state digest is made of these, however the blobs are cut."""
    base: list[str]
    deltas: list[tuple[str, NDArray[np.uint32]]]
    """Each delta's digest, and the columns in it. Later deltas are shorter, and are written over earlier ones."""


NO_ARRAY = Encoded(np.zeros(0), [], [], [])


def encode_array(array: NDArray[Any], before: Encoded) -> tuple[Encoded, dict[str, bytes]]:
    """How to store an array if the store has `before`, and the blobs that it lacks.

    The array is kept and must not change later. An array of single precision is compared with `before`, rounded.

    Changes become a delta if that is smaller than the blocks they are in, until deltas pass a quarter of the base. Then
    a new base is cut. A delta takes in the earlier ones that are not longer, so there are few deltas although each save
    writes about as much as changed. Values are compared by their bits with those of the last accepted save, so a save
    that failed needs no merging back: its changes are still changes.
    """
    changed, dirty, blocks = _compare(array, before)
    deltas, columns = list(before.deltas), changed
    while deltas and len(deltas[-1][1]) <= len(columns):
        columns = np.union1d(deltas.pop()[1], columns)
    in_deltas = DELTA.itemsize * (len(columns) + sum(len(covered) for _, covered in deltas))
    in_base = len(before.base) * BLOCK_COLUMNS * 8
    touched = sum(len(_block(array, i)) for i in dirty)
    if before.base and DELTA.itemsize * len(columns) <= touched and in_deltas * 4 <= in_base:
        if not len(columns):
            return Encoded(array, blocks, before.base, deltas), {}
        delta = np.empty(len(columns), DELTA)
        delta["column"], delta["value"] = columns, array[columns]
        blob = delta.tobytes()
        return Encoded(array, blocks, before.base, [*deltas, (digest(blob), columns)]), {digest(blob): blob}
    stored = set(before.base)
    new = {name: _block(array, i) for i, name in enumerate(blocks) if name not in stored}
    return Encoded(array, blocks, blocks, []), new


def missing_array_blobs(base: list[str], deltas: list[str], before: Encoded = NO_ARRAY) -> list[str]:
    """The blobs of an array that a reader with `before` has to fetch."""
    if base == before.base:
        return deltas[common_deltas(deltas, before) :]
    return [name for i, name in enumerate(base) if before.blocks[i : i + 1] != [name]] + deltas


def decode_array(base: list[str], deltas: list[str], parts: Blobs, columns: int, before: Encoded = NO_ARRAY) -> Encoded:
    """The array that a base and deltas describe. `parts` has the blobs that `missing_array_blobs` names, verified.

    Raises SnapshotDamaged if they do not fit `columns`, or do not continue `before`.
    """
    if base != before.base:
        # The name of a block is its digest, so a block that `before` has under this name is the same.
        blocks = (
            _block(before.values, i) if before.blocks[i : i + 1] == [name] else parts[name]
            for i, name in enumerate(base)
        )
        before = Encoded(_rows(b"".join(blocks), np.dtype("<f8")), base, base, [])
    start, common = len(before.values), common_deltas(deltas, before)
    if start > columns:
        raise SnapshotDamaged(f"an array has {start} columns where the head says {columns}")
    values = np.zeros(columns)
    values[:start] = before.values
    covered = before.deltas[:common]
    for name in deltas[common:]:
        delta = _rows(parts[name], DELTA)
        if len(delta) and int(delta["column"].max()) >= columns:
            raise SnapshotDamaged(f"delta {name[:12]} has a column beyond the {columns} of the head")
        values[delta["column"]] = delta["value"]
        covered.append((name, delta["column"].astype(np.uint32)))
    return Encoded(values, _compare(values, before)[2], base, covered)


def _compare(values: NDArray[Any], before: Encoded) -> tuple[NDArray[np.uint32], set[int], list[str]]:
    """The columns whose bits differ from those of `before`, which is not longer; their blocks; all blocks' digests."""
    old = before.values.astype(values.dtype, copy=False)
    if len(old) < len(values):
        old = np.concatenate([old, np.zeros(len(values) - len(old), values.dtype)])
    bits = f"u{values.itemsize}"
    changed = np.flatnonzero(values.view(bits) != old.view(bits)).astype(np.uint32)
    count = -(-len(values) // BLOCK_COLUMNS)
    grown = range(len(before.values) // BLOCK_COLUMNS, count) if len(values) > len(before.values) else ()
    blocks = before.blocks + [""] * (count - len(before.blocks))
    dirty = {*np.flatnonzero(np.bincount(changed // BLOCK_COLUMNS)).tolist(), *grown}
    for i in dirty:
        blocks[i] = digest(_block(values, i))
    return changed, dirty, blocks


def _rows(blob: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    if len(blob) % kind.itemsize:
        raise SnapshotDamaged(f"a blob of {len(blob)} bytes does not hold whole rows of {kind.itemsize}")
    return np.frombuffer(blob, kind)


def common_deltas(deltas: list[str], before: Encoded) -> int:
    """The number of deltas that `before` begins with too. Later ones cover the rest of it (see `encode_array`)."""
    return len(deltas) - len(later_blobs(deltas, [name for name, _ in before.deltas]))


def _block(array: NDArray[Any], i: int) -> bytes:
    return array[i * BLOCK_COLUMNS : (i + 1) * BLOCK_COLUMNS].astype("<f8", copy=False).tobytes()


def encode_name_blobs(names: Sequence[str], before: list[str], count: int) -> tuple[list[str], dict[str, bytes]]:
    """Names as blobs, and the blobs that a store lacks which has the first `count` names in the blobs `before`."""
    if len(names) == count:
        return before, {}
    full = count // BLOCK_NAMES
    cuts = (names[i : i + BLOCK_NAMES] for i in range(full * BLOCK_NAMES, len(names), BLOCK_NAMES))
    new = {digest(blob): blob for blob in map(msgspec.json.encode, cuts)}  # no two names are equal, so no two blobs
    return [*before[:full], *new], new


def decode_name_blobs(names: list[str], parts: Blobs, before: list[str], held: Sequence[str]) -> list[str]:
    """The names after the `held` ones, which are in the blobs `before`; raises SnapshotDamaged if they do not go on."""
    fetched = later_blobs(names, before)
    try:
        joined = [name for digest in fetched for name in _names.decode(parts[digest])]
    except msgspec.DecodeError as error:
        raise SnapshotDamaged(f"a names blob does not decode: {error}") from error
    overlap = held[(len(names) - len(fetched)) * BLOCK_NAMES :] if fetched else ()
    if joined[: len(overlap)] != list(overlap):
        raise SnapshotDamaged("the names do not begin with those of the snapshot before")
    return joined[len(overlap) :]


def encode_runs(runs: Runs, before: list[str]) -> tuple[list[str], Runs, dict[str, bytes]]:
    """Runs as blobs, the runs that stay in the head, and the blobs that a store with those of `before` lacks.

    Several partitions make very many runs between two kept versions. Only the last run may still change.
    """
    full = max(0, len(runs) - 1) // BLOCK_RUNS
    cuts = (runs[i * BLOCK_RUNS : (i + 1) * BLOCK_RUNS] for i in range(len(before), full))
    new = {digest(blob): blob for blob in (np.array(cut, RUN).tobytes() for cut in cuts)}  # as above
    return [*before, *new], runs[full * BLOCK_RUNS :], new


def decode_runs(names: list[str], rest: Runs, parts: Blobs, before: list[str], held: Runs) -> Runs:
    """All runs of a head. The `held` runs begin with the runs in the blobs `before`."""
    fetched = later_blobs(names, before)
    fresh = (run for name in fetched for run in _rows(parts[name], RUN).tolist())
    return [*held[: (len(names) - len(fetched)) * BLOCK_RUNS], *fresh, *rest]
