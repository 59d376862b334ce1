"""Memory that nothing uses any more goes back to the system. By itself glibc keeps what was freed: as much again as a
wide event or a large save once took. Elsewhere nothing of this is done.
"""

import ctypes
from typing import Any

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX."""


def _of_glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, lambda *_: None)


def one_arena() -> None:
    """Before there are threads: have one heap for all of them, since only the first is ever given back as a whole."""
    _of_glibc("mallopt")(_ARENA_MAX, 1)


def give_back() -> None:
    """Takes some milliseconds, in which other threads may wait for memory."""
    _of_glibc("malloc_trim")(0)
