"""The compiler of loops over numbers and bytes, and machine instructions for them. Compiled code is cached on disk.

numba checks only a function's own file for changes, but compiles the functions that it calls into it. So the folder of
compiled code is named by a digest of all sources of `learning` and of the CPU: no stale code runs. The folder is
in NUMBA_CACHE_DIR, or else next to the sources. If it cannot be written, as in an image on a read-only root, it is
copied to a private temporary folder, which is then used.

The instructions are loads at an address, counts of bits and products of 128 bits. An address is an array's
`ctypes.data`. Nothing is checked: the caller makes sure that the bytes are there.
"""

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from ctypes import c_uint8
from pathlib import Path
from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.core import config
from numba.extending import intrinsic

ENABLED: bool = not config.DISABLE_JIT  # type: ignore[attr-defined]
"""Whether loops are compiled. If not, they run in Python, and the compiled readers of rows and vectors are not used."""
_SOURCES, _PREFIX = Path(__file__).parent, "kernels-"
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

_BYTE, _WORD, _WIDE = ir.IntType(8), ir.IntType(64), ir.IntType(128)


def _word(build: Callable[..., Any], result: Any, *arguments: Any) -> Any:
    """A function of words that compiles to the instructions that `build` returns for its arguments."""

    def typed(*_: Any) -> Any:
        return result(*arguments), lambda _context, builder, _signature, values: build(builder, *values)

    # numba counts the parameters after the context.
    if len(arguments) == 1:
        return intrinsic(lambda context, a: typed(context, a))  # noqa: PLW0108 - numba needs this many
    return intrinsic(lambda context, a, b: typed(context, a, b))  # noqa: PLW0108


def _load(builder: Any, address: Any, offset: Any, of: Any) -> Any:
    pointer = builder.inttoptr(builder.add(address, offset), of.as_pointer())
    return builder.load(pointer, align=1)


_NO = ir.Constant(ir.IntType(1), 0)

byte_at: Any = (
    _word(lambda b, a, i: b.zext(_load(b, a, i, _BYTE), _WORD), types.int64, types.int64, types.int64)
    if ENABLED
    else lambda address, offset: c_uint8.from_address(int(address + offset)).value
)
"""The byte at an offset from an address. Unlike the others it can be called from Python if nothing is compiled."""
word_at: Any = _word(lambda b, a, i: _load(b, a, i, _WORD), types.uint64, types.int64, types.int64)
"""The eight bytes from there on, the first byte lowest."""
double_at: Any = _word(lambda b, a, i: _load(b, a, i, ir.DoubleType()), types.float64, types.int64, types.int64)
"""The same eight bytes as a double."""
trailing_zeros: Any = _word(lambda b, x: b.cttz(x, _NO), types.int64, types.uint64)
leading_zeros: Any = _word(lambda b, x: b.ctlz(x, _NO), types.int64, types.uint64)
upper_product: Any = _word(
    lambda b, x, y: b.trunc(b.lshr(b.mul(b.zext(x, _WIDE), b.zext(y, _WIDE)), ir.Constant(_WIDE, 64)), _WORD),
    types.uint64, types.uint64, types.uint64,
)  # fmt: skip
"""The upper half of the product of two words."""
