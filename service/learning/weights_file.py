"""A file of weights: the JSON that `export` and `fit` write, and that the settings `start` and `reference` read."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from service.errors import ConfigurationError
from service.learning.identity import FROM_FILE, MAX_SQUARED_NORM, SUMS, Identity, Label
from service.learning.kernel.kernel import Vector, squared_norm

Members = dict[str, Any]
"""The members of a JSON object."""


class WeightsFile(msgspec.Struct, frozen=True):
    """The weights of a file: `coef` in column order, and the `names` of its columns (None if positional or hashed).

    >>> WeightsFile([2.0, -1.0], intercept=0.5, names=["a", "b"]).vector
    array([ 0.5,  2. , -1. ])
    """

    coef: list[float]
    intercept: float
    names: list[str] | None = None

    def __post_init__(self) -> None:
        if not squared_norm(self.vector) <= MAX_SQUARED_NORM:
            raise ValueError(f"weights must be numbers whose squared norm is at most {MAX_SQUARED_NORM:g}")

    @property
    def vector(self) -> Vector:
        """The intercept and then `coef`."""
        return np.array([self.intercept, *self.coef])

    @property
    def identity(self) -> str:
        """The `start` of the identity of a model that begins with these weights."""
        return FROM_FILE + hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class _About(msgspec.Struct):
    scale: str | None = None
    features: dict[str, Any] = {}
    classes: list[Label] = []


def read_weights(raw: bytes, source: str, mode: str, scale: str) -> WeightsFile:
    """Parse the bytes of a file for a model of this mode and scale; raises ConfigurationError with the `source`."""
    try:
        about = msgspec.json.decode(raw, type=_About)
        if len(about.classes) > 2:
            raise ConfigurationError(f"{source}: it has weights for {len(about.classes):,} labels: expected two")
        weights = msgspec.json.decode(raw, type=WeightsFile)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{source}: {error}: expected a file that `perceptron export` writes") from None
    if (file_mode := about.features.get("mode", mode)) != mode:
        raise ConfigurationError(f"{source}: its features are {file_mode}, the model's {mode}")
    if (file_scale := about.scale or scale) != scale:
        raise ConfigurationError(f'{source}: its weights were learned with scale = "{file_scale}", not "{scale}"')
    if weights.names is not None and len(set(weights.names)) != len(weights.coef):
        raise ConfigurationError(f"{source}: coef has {len(weights.coef):,} weights: expected as many different names")
    return weights


def weights_as_json(
    identity: Identity, names: Sequence[str], w: Vector, counts: Members, about: Members, sums: Mapping[str, Vector]
) -> Members:
    """Weights as the members of the file: `coef` is in column order, with the `names` of its columns if named.

    With three labels or more `w` has a column for each label; `coef` then has a row and `intercept` a number for each.
    `about` has members that say where the weights are from, `sums` the arrays that values are scaled by.
    """
    features: dict[str, Any] = {"mode": identity.features}
    if identity.features == "positional":
        features["dimension"] = identity.dimension
    if identity.features == "hashed":
        # The arguments of sklearn.feature_extraction.FeatureHasher.
        features["bits"] = identity.bits
        features["feature_hasher"] = {"n_features": len(w) - 1, "input_type": "dict", "alternate_sign": True}
    return {
        "format": "perceptron-export",
        "format_version": 1,
        **about,
        "rule": identity.rule,
        "eta": identity.eta,
        "tie": identity.tie,
        "features": features,
        "scale": identity.scale,
        **({"clip": identity.clip} if identity.clip else {}),
        **{name: array[1:].tolist() for name, array in sums.items() if name in SUMS},
        "names": [*names] if identity.features == "named" else None,
        "n_features": len(w) - 1,
        "classes": list(identity.labels or (-1, 1)),
        "intercept": w[0].tolist(),
        "coef": w[1:].T.tolist(),
        "counts": counts,
    }
