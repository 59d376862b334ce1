"""Memory that nothing uses any more goes back to the system. By itself glibc keeps what was freed: as much again as a
wide event or a large save once took; and code stays that ran once. Elsewhere than on Linux nothing of this is done.
"""

import ctypes
from pathlib import Path
from typing import Any

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX."""
_DONTNEED = 4
"""Linux' MADV_DONTNEED: pages of a file's code that are asked for again are read again."""
_MAPPED, _COMPILER = Path("/proc/self/maps"), "libllvmlite.so"


def _of_glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, lambda *_: None)


def one_arena() -> None:
    """Before there are threads: have one heap for all of them, since only the first is ever given back as a whole."""
    _of_glibc("mallopt")(_ARENA_MAX, 1)


def give_back() -> None:
    """Takes some milliseconds, in which other threads may wait for memory."""
    _of_glibc("malloc_trim")(0)


def forget_compiler() -> None:
    """Have no page of the compiler's own code, 50 MB, once it has loaded what it compiles: then nothing runs it.

    Takes some milliseconds, in which other threads go on.
    """
    for line in _MAPPED.read_text().splitlines() if _MAPPED.exists() else ():
        place, rights, *_, name = line.split()
        if rights == "r-xp" and name.endswith(_COMPILER):
            begin, end = (int(one, 16) for one in place.split("-"))
            _of_glibc("madvise")(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)
