"""Decompression of record batches. The size of the output is limited, whatever size a header declares."""

import zlib
from collections.abc import Callable, Iterator
from functools import partial

import cramjam

FIRST_OUTPUT_BYTES = 1 << 16
"""The smallest output buffer that a decoder gets."""
XERIAL_MAGIC, XERIAL_HEADER_BYTES = b"\x82SNAPPY\x00", 16
"""The first bytes of a stream of Java's snappy library, and the size of its header."""

Decompress = Callable[[memoryview, int], bytes | bytearray]


class DamagedBatch(Exception):
    """A batch cannot be read, even if it is fetched again."""


def decompress(codec: int, packed: memoryview, max_bytes: int) -> bytes | bytearray | memoryview:
    """Decompress with Kafka's codec of this number; raises DamagedBatch, also for more than `max_bytes` of output."""
    if codec == 0:
        return packed
    if codec not in CODECS:
        raise DamagedBatch(f"has the unknown codec {codec}")
    name, unpack = CODECS[codec]
    try:
        return unpack(packed, max_bytes)
    except (cramjam.DecompressionError, zlib.error, ValueError) as error:
        raise DamagedBatch(f"has damaged {name} data: {error}") from None


def _too_large(max_bytes: int) -> DamagedBatch:
    return DamagedBatch(f"unpacks to more than {max_bytes:,} bytes (kafka.max_batch_bytes can be raised)")


def _unpack(decompress_into: Callable[[memoryview, bytearray], int], packed: memoryview, max_bytes: int) -> bytearray:
    """Decompress by a decoder that raises if its output buffer is too small."""
    size = min(max_bytes, max(FIRST_OUTPUT_BYTES, 8 * len(packed)))
    while True:
        out = bytearray(size)
        try:
            del out[decompress_into(packed, out) :]
            return out
        except (cramjam.DecompressionError, ValueError) as error:
            if "write whole buffer" not in str(error):
                raise
        if size == max_bytes:
            raise _too_large(max_bytes)
        size = min(max_bytes, 4 * size)


def _snappy(packed: memoryview, max_bytes: int) -> bytes:
    blocks = list(_java_blocks(packed)) if packed[: len(XERIAL_MAGIC)] == XERIAL_MAGIC else [packed]
    # The decoder refuses a block that is longer than it declares.
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _java_blocks(packed: memoryview) -> Iterator[memoryview]:
    """The blocks of a Java stream, which follow their lengths."""
    start = 0
    while start < len(packed):
        if packed[start : start + len(XERIAL_MAGIC)] == XERIAL_MAGIC:  # a stream begins, perhaps after another one
            start += XERIAL_HEADER_BYTES
        end = start + 4 + int.from_bytes(packed[start : start + 4], "big")
        if end > len(packed):
            raise ValueError("a block is cut short")
        yield packed[start + 4 : end]
        start = end


def _gzip(packed: memoryview, max_bytes: int) -> bytes | bytearray:
    try:
        return _unpack(cramjam.gzip.decompress_into, packed, max_bytes)
    except (cramjam.DecompressionError, ValueError):
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        out = decoder.decompress(packed, max_bytes)
        if not decoder.eof:
            raise
        return out  # other bytes follow, which the Java client ignores


def _lz4(packed: memoryview, max_bytes: int) -> bytes | bytearray:
    """The content of the first frame. As in the Java client other bytes may follow, which are ignored."""
    flags = int.from_bytes(packed[4:5], "big")
    end = 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
    while size := int.from_bytes(packed[end : end + 4], "little"):
        end += 4 + (size & 0x7FFFFFFF) + 4 * (flags >> 4 & 1)
    return _unpack(cramjam.lz4.decompress_into, packed[: end + 4 + 4 * (flags >> 2 & 1)], max_bytes)


CODECS: dict[int, tuple[str, Decompress]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _lz4),
    4: ("zstd", partial(_unpack, cramjam.zstd.decompress_into)),
}
"""Name and bounded decoder of each codec, by Kafka's number."""
