"""Compiles loops over numbers and bytes, and caches the compiled code on disk.

numba checks only a function's own file for changes, but compiles the functions that it calls into it. So the folder of
compiled code is named by a digest of all sources of `learning` and of the CPU: no stale code runs. The folder is
in NUMBA_CACHE_DIR, or else next to the sources. If it cannot be written, as in an image on a read-only root, it is
copied to a private temporary folder, which is then used.
"""

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit
from numba.core import config

ENABLED: bool = not config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether loops are compiled. If not, they run in Python, and the compiled readers of rows and vectors are not used."""
_SOURCES, _PREFIX = Path(__file__).parents[1], "kernels-"
_DAY = 86_400.0


def _name() -> str:
    """The name of the folder for these sources and this CPU."""
    cpu = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    digest = hashlib.sha256(f"{platform.machine()} {cpu}".encode())
    for file in sorted(_SOURCES.rglob("*.py")):  # file times are not reliable in an image
        digest.update(str(file.relative_to(_SOURCES)).encode() + b"\0" + file.read_bytes() + b"\0")
    return _PREFIX + digest.hexdigest()[:16]


def _writable(folder: Path) -> bool:
    """Whether files can be written to the folder. It is made if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _private_copy(folder: Path) -> Path | None:
    """A copy of the folder in a temporary folder that no other user can write to; None if that is not possible.

    numba unpickles what it finds in the folder, so another user's file there would run as ours.
    """
    try:
        home = Path(tempfile.gettempdir(), f"perceptron-{os.getuid()}")
        home.mkdir(mode=0o700, exist_ok=True)
        if home.is_symlink() or home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o022:
            return None
        copy = home / folder.name
        if folder.is_dir() and not copy.exists():
            part = Path(tempfile.mkdtemp(dir=home))
            shutil.copytree(folder, part, dirs_exist_ok=True, copy_function=shutil.copyfile)
            try:
                part.rename(copy)
            except OSError:  # another process was first
                shutil.rmtree(part)
    except OSError:
        return None
    return copy if _writable(copy) else None


def _folder() -> Path | None:
    """The folder for compiled code; None if nothing can be written."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = (Path(chosen) if chosen else _SOURCES / "__pycache__") / _name()
    new = not folder.exists()
    if not _writable(folder):
        return _private_copy(folder)
    if new and not chosen:
        for other in folder.parent.glob(f"{_PREFIX}*"):
            if other.stat().st_mtime < folder.stat().st_mtime - _DAY:
                shutil.rmtree(other, ignore_errors=True)
    return folder


_CACHE = _folder() if ENABLED else None
if _CACHE is not None:
    config.CACHE_DIR = str(_CACHE)  # type: ignore[attr-defined]
CACHE_IS_EMPTY: bool = ENABLED and (_CACHE is None or not any(_CACHE.iterdir()))
"""Whether all loops must still be compiled, which takes 10 to 20 seconds."""
# Division by zero follows IEEE 754: a check before each division would prevent vectorised loops.
compiled: Callable[[Callable[..., Any]], Any] = njit(nogil=True, error_model="numpy", cache=_CACHE is not None)
"""The function, compiled on first use; the compiled code is cached for later processes if there is a folder."""
inlined: Callable[[Callable[..., Any]], Any] = njit(inline="always", error_model="numpy")
"""The function, compiled into its only caller: passing an array to a call costs two atomic counts."""
