"""How loops over numbers and bytes are compiled."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """The function, to be compiled on first use; the result is kept for the next process where there is a place."""
    try:
        made: Any = njit(cache=True, nogil=True)(function)
        if made is not function:  # as where compilation is switched off
            # What it calls is compiled into it, and numba looks for changes in its own file alone.
            files = sorted(Path(inspect.getfile(function)).parent.glob("*.py"))
            made._cache._cache_file._source_stamp = [(f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files]
        return made
    except (RuntimeError, AttributeError):
        # No folder that can be written, as on a read-only file system; or a numba that keeps its cache in another way.
        return njit(nogil=True)(function)
