"""The first weights of a model: zero, random or from a file. One string of the identity says which.

zero            every column begins at 0
random:SEED     column c begins at a number in [-1, 1) that depends on SEED and c alone
weights:DIGEST  the weights of a file (`weights_file.WeightsFile`)
"""

import numpy as np
from numpy.typing import NDArray

from service.learning.identity import Identity

RANDOM, FROM_FILE = "random:", "weights:"


def initial_weights(identity: Identity, first: int, count: int) -> NDArray[np.float64]:
    """The first weights of `count` columns from `first` on; zeros if they come from a file, which is not read here.

    With three labels or more the shape is (count, classes): each class has its own numbers.
    """
    shape, width = ((count, identity.classes), identity.classes) if identity.multiclass else ((count,), 1)
    if not identity.start.startswith(RANDOM):
        return np.zeros(shape)
    # Steele, Lea and Flood's splitmix64 of seed and column: the same on every machine, in any order of columns.
    z = np.arange(first * width + 1, (first + count) * width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(int(identity.start.removeprefix(RANDOM)))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (2.0 * unit - 1.0).reshape(shape)
