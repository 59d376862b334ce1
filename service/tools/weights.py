"""A file of weights: the one JSON form that `export` and `fit` write and the settings `start` and `reference` read."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.errors import ConfigurationError
from service.learning.identity import Identity
from service.learning.kernel import Vector

FORMAT_VERSION = 1


def as_json(
    identity: Identity, names: Sequence[str], w: Vector, counts: dict[str, Any], about: dict[str, Any]
) -> dict[str, Any]:
    """Weights as the JSON names their parts; `coef` is in column order, and `names` those of its columns, if named.

    `about` says where they are from.
    """
    features: dict[str, Any] = {"mode": identity.features}
    if identity.features == "positional":
        features["dimension"] = identity.dimension
    if identity.features == "hashed":
        # As arguments of sklearn.feature_extraction.FeatureHasher.
        features["bits"] = identity.bits
        features["feature_hasher"] = {"n_features": len(w) - 1, "input_type": "dict", "alternate_sign": True}
    return {
        "format": "perceptron-export",
        "format_version": FORMAT_VERSION,
        **about,
        "rule": identity.rule,
        "eta": identity.eta,
        "tie": identity.tie,
        "features": features,
        "names": names if identity.features == "named" else None,
        "n_features": len(w) - 1,
        "classes": list(identity.labels or (-1, 1)),
        "intercept": float(w[0]),
        "coef": w[1:].tolist(),
        "counts": counts,
    }


def write(file: str, content: bytes) -> None:
    """Write a file whole or not at all; raises ConfigurationError."""
    # A link stays a link. What is no file, such as a pipe or /dev/null, cannot be replaced.
    path = Path(file).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}") if path.is_file() or not path.exists() else path
    try:
        with part.open("wb") as out:
            out.write(content)
            out.flush()
            if part != path:
                os.fsync(out.fileno())
        os.replace(part, path)
    except OSError as error:
        if part != path:
            part.unlink(missing_ok=True)
        raise ConfigurationError(f"{file}: {error.strerror}") from None
