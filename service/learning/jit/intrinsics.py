"""Machine instructions for compiled loops over bytes: loads at an address, counts of bits, products of 128 bits.

An address is an array's `ctypes.data`. Nothing is checked: the caller makes sure that the bytes are there.
"""

from collections.abc import Callable
from ctypes import c_uint8
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from service.learning.jit.jit import ENABLED

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
