"""What becomes of memory that was freed. Where there is no glibc nothing is changed.

By itself glibc gives a block of some hundred KiB back to the system each time, which is a fifth of the time of a large
request, and keeps for good what lies between blocks: 12 MB after a start, 30 MB after the first save of a million
columns.
"""

import ctypes

REUSED_BYTES = 4 << 20
"""Blocks up to this size are used again."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LIBC = ctypes.CDLL(None)


def reuse() -> None:
    """Have freed blocks used again, of which each thread keeps a few."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES)


def give_back() -> None:
    """Give all back to the system: some milliseconds, in which other threads may wait for memory."""
    getattr(_LIBC, "malloc_trim", lambda _: None)(0)
