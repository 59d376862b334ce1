"""What a state holds of a column, as one value: its weight, or its weight and what makes the average of it.

A state is a contiguous array of shape (columns,) or (columns, 2). The two of a pair are read, added and multiplied at
once, and each gets the bits that it would get alone. A compiler could find such pairs by itself; numba leaves that pass
of LLVM off, since it miscompiled.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model


def row(state: Any, column: Any) -> Any:
    """The column's numbers."""
    return state[column]


def put(state: Any, column: Any, of: Any) -> None:
    """Let the column have these."""
    state[column] = of


def numbers(state: Any, weight: float, beside: float) -> Any:
    """Numbers such as this state has: the first, or both."""
    return np.array((weight, beside)) if state.ndim == 2 else weight


def first(of: Any) -> Any:
    """The weight."""
    return np.ravel(of)[0]


def second(of: Any) -> Any:
    """What is beside it, if anything is."""
    return np.ravel(of)[-1]


class _Pair(types.Type):
    """Both, in one register."""


@register_model(_Pair)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _LANES)  # type: ignore[no-untyped-call]


_PAIR, _NUMBER, _COLUMN = _Pair("Pair"), types.float64, types.uintp
_LANES = ir.VectorType(ir.DoubleType(), 2)
_PLACES = [ir.Constant(ir.IntType(32), i) for i in range(2)]


def _kind(state: Any) -> Any:
    return _PAIR if state.ndim == 2 else _NUMBER


def _pair(builder: Any, *both: Any) -> Any:
    pair = ir.Constant(_LANES, ir.Undefined)
    for number, place in zip(both, _PLACES, strict=True):
        pair = builder.insert_element(pair, number, place)
    return pair


def _address(context: Any, builder: Any, kind: Any, state: Any, column: Any) -> Any:
    data = context.make_array(kind)(context, builder, state).data
    return builder.gep(builder.bitcast(data, _LANES.as_pointer()) if kind.ndim == 2 else data, [column])


def _lowered(function: Any, typed: Callable[..., Any], *kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """What follows makes instructions of a call of the function, whose result's and arguments' types are `typed`."""
    typing: Any = signature
    of = {"key": function, "generic": lambda _, given, __: (found := typed(*given)) and typing(*found)}
    register: Any = infer_global(function)  # type: ignore[no-untyped-call]
    register(type(function.__name__, (AbstractTemplate,), of))
    found: Callable[[Callable[..., Any]], Any] = lower_builtin(function, *kinds)  # type: ignore[no-untyped-call]
    return found


@_lowered(row, lambda state, _: (_kind(state), state, _COLUMN), types.Any, types.Any)
def _load(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    return builder.load(_address(context, builder, signature.args[0], *given), align=8)


@_lowered(put, lambda state, _, of: (types.void, state, _COLUMN, of), types.Any, types.Any, types.Any)
def _store(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    builder.store(given[2], _address(context, builder, signature.args[0], *given[:2]), align=8)
    return context.get_dummy_value()


@_lowered(numbers, lambda state, *_: (_kind(state), state, _NUMBER, _NUMBER), types.Any, types.Any, types.Any)
def _numbers(_: Any, builder: Any, signature: Any, given: Any) -> Any:
    return given[1] if signature.return_type == _NUMBER else _pair(builder, *given[1:])


def _lane(function: Any, place: Any) -> None:
    @_lowered(function, lambda of: (_NUMBER, of), types.Any)
    def _(_: Any, builder: Any, signature: Any, given: Any) -> Any:
        return given[0] if signature.args[0] == _NUMBER else builder.extract_element(given[0], place)


_lane(first, _PLACES[0])
_lane(second, _PLACES[1])


@_lowered(operator.add, lambda a, b: (a, a, b) if a == b == _PAIR else None, _PAIR, _PAIR)
def _sum(_: Any, builder: Any, _signature: Any, given: Any) -> Any:
    return builder.fadd(*given)


@_lowered(operator.mul, lambda a, b: (a, a, b) if (a, b) == (_PAIR, _NUMBER) else None, _PAIR, _NUMBER)
def _product(_: Any, builder: Any, _signature: Any, given: Any) -> Any:
    return builder.fmul(given[0], _pair(builder, given[1], given[1]))
