"""How loops over numbers and bytes are compiled."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """The function, to be compiled on first use; the result is kept for the next process where there is a place."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder that can be written: a read-only file system, a user without a home
        return njit(nogil=True)(function)
