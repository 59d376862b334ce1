"""Arrays and names to immutable blobs, and back. A blob's name is the SHA-256 of its bytes.

base    8,192 columns of an array as little-endian f8 (the last block is shorter)
names   4,096 feature names in column order as a JSON list (the last is shorter)

The cuts are fixed, so equal state has equal digests, however it was reached.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import SnapshotDamaged

BLOCK_COLUMNS = 8192
BLOCK_NAMES = 4096

_names = msgspec.json.Decoder(list[str])


def digest(blob: bytes) -> str:
    """The name of a blob or head: SHA-256, hexadecimal."""
    return hashlib.sha256(blob).hexdigest()


def cut_array(array: NDArray[np.float64]) -> list[bytes]:
    """An array as base blobs, in column order."""
    little = array.astype("<f8", copy=False)
    return [little[i : i + BLOCK_COLUMNS].tobytes() for i in range(0, len(little), BLOCK_COLUMNS)]


def join_array(blobs: Iterable[bytes], length: int) -> NDArray[np.float64]:
    """The array that `cut_array` cut; raises SnapshotDamaged when the length is another."""
    array = np.frombuffer(b"".join(blobs), "<f8").astype(np.float64)
    if len(array) != length:
        raise SnapshotDamaged(f"an array has {len(array)} columns where the head says {length}")
    return array


def cut_names(names: Sequence[str]) -> list[bytes]:
    """Names as blobs, in column order."""
    return [msgspec.json.encode(names[i : i + BLOCK_NAMES]) for i in range(0, len(names), BLOCK_NAMES)]


def join_names(blobs: Iterable[bytes]) -> list[str]:
    """The names that `cut_names` cut."""
    try:
        return [name for blob in blobs for name in _names.decode(blob)]
    except msgspec.DecodeError as error:
        raise SnapshotDamaged(f"a names blob does not decode: {error}") from error
