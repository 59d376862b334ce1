"""Where the weights of a model begin: at zero, at random, or at given ones. Part of the identity, as one string.

zero            every column begins at 0
random:SEED     column c begins at a number in [-1, 1) that depends on SEED and c alone
weights:DIGEST  given weights, in the form that `perceptron export` and `perceptron fit` write
"""

import hashlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import ConfigurationError
from service.learning.identity import MAX_SQUARED_NORM

RANDOM, GIVEN = "random:", "weights:"


class Weights(msgspec.Struct, frozen=True):
    """Given weights: `names` in column order (none where features are positional or hashed), beside `coef`."""

    coef: list[float]
    intercept: float
    names: list[str] | None = None

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            if not self.vector @ self.vector <= MAX_SQUARED_NORM:
                raise ValueError(f"weights must be numbers whose squared norm is at most {MAX_SQUARED_NORM:g}")

    @property
    def vector(self) -> NDArray[np.float64]:
        """The intercept, and then the rest."""
        return np.array([self.intercept, *self.coef])

    @property
    def identity(self) -> str:
        """What an identity says of them."""
        return GIVEN + hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class _Mode(msgspec.Struct):
    mode: str | None = None


class _About(msgspec.Struct):
    features: _Mode = msgspec.field(default_factory=_Mode)


def read(raw: bytes, source: str, mode: str) -> Weights:
    """Weights from a file's bytes, for features of this mode; raises ConfigurationError that names the `source`."""
    try:
        weights = msgspec.json.decode(raw, type=Weights)
        given = msgspec.json.decode(raw, type=_About).features.mode or mode
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{source}: {error}: expected what `perceptron export` writes") from None
    if given != mode:
        raise ConfigurationError(f"{source}: its features are {given}, the model's {mode}")
    if weights.names is not None and len(set(weights.names)) != len(weights.coef):
        raise ConfigurationError(f"{source}: expected as many different names as there are weights in coef")
    return weights


def initial(start: str, first: int, count: int) -> NDArray[np.float64]:
    """The weights with which the columns `first`, `first` + 1, … (`count` of them) begin, given ones aside."""
    if not start.startswith(RANDOM):
        return np.zeros(count)
    # Steele, Lea and Flood's splitmix64 of seed and column: the same on every machine, in any order of columns.
    with np.errstate(over="ignore"):
        z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(int(start.removeprefix(RANDOM)))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit: NDArray[Any] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return 2.0 * unit - 1.0
