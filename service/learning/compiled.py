"""How loops over numbers and bytes are compiled, and where the result is kept."""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

ENABLED: bool = not config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether anything is: else loops run in Python, but for those over bytes at an address."""


# A division by zero gives what IEEE 754 says: a test before each would let no loop divide several numbers at once.
_compile: Any = njit(nogil=True, error_model="numpy")


def inlined(function: Callable[..., Any]) -> Any:
    """The function, to be compiled into its one caller: an array that is handed to a call costs two atomic counts."""
    return njit(inline="always", error_model="numpy")(function)


def compiled(function: Callable[..., Any]) -> Any:
    """The function, to be compiled on first use; the result is kept for the next process where there is a place."""
    made = _compile(function)
    try:
        if made is not function:  # as where compilation is switched off
            made._cache = cache = _Cache(function)  # type: ignore[no-untyped-call]
            # What it calls is compiled into it, and numba looks for changes in its own file alone.
            cache._cache_file._source_stamp = _digest(Path(inspect.getfile(function)).parent)
    except (RuntimeError, AttributeError):
        # No place at all; or a numba that keeps its cache in another way.
        return _compile(function)
    return made


@functools.cache
def _digest(folder: Path) -> str:
    """The digest of a folder's sources and of `learning`'s. Their times say nothing: an image packs its files."""
    files = sorted({*folder.glob("*.py"), *Path(__file__).parent.rglob("*.py")})
    return hashlib.sha256(b"".join(f.name.encode() + b"\0" + f.read_bytes() for f in files)).hexdigest()


class _Brought(_CacheLocator):
    """Beside the source, where nothing can be written now: an image brings along what was kept there."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._file, self._line = Path(file), function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_Brought | None":
        """The locator, where something is there."""
        found = cls(function, file)
        return found if any(Path(found.get_cache_path()).glob("*.nbi")) else None

    def get_cache_path(self) -> str:
        """Where numba keeps it if it can."""
        return str(self._file.parent / "__pycache__")

    def get_source_stamp(self) -> str:
        """What it was compiled from."""
        return _digest(self._file.parent)

    def get_disambiguator(self) -> str:
        """As numba does, so that it is found."""
        return str(self._line)


class _Places(CompileResultCacheImpl):
    """NUMBA_CACHE_DIR, beside the source, what was brought there, the user's own folder: the first that will do."""

    _locator_classes = [  # noqa: RUF012 - numba's name
        *CompileResultCacheImpl._locator_classes[:2],
        _Brought,
        *CompileResultCacheImpl._locator_classes[2:],
    ]


class _Cache(FunctionCache):
    _impl_class = _Places

    def save_overload(self, signature: Any, data: Any) -> None:
        if not isinstance(self._impl.locator, _Brought):
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
