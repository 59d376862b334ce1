"""A prediction: request bytes to features, by the same rules as events, then the same scoring as learning."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.features import Members, certain, check_features, kind, parse
from service.learning.identity import Identity
from service.learning.learner import Learner

Features = Mapping[str, float] | Sequence[float]

MAX_EXPLAINED = 20_000
"""Contributions in one answer, which is made in one turn of the loop."""
_UNSET = msgspec.UNSET


class _Named(msgspec.Struct):
    features: dict[str, float]


class _Listed(msgspec.Struct):
    features: list[float]


class _NamedRequest(msgspec.Struct):
    features: dict[str, float] | msgspec.UnsetType = _UNSET
    instances: list[_Named] | msgspec.UnsetType = _UNSET


class _ListedRequest(msgspec.Struct):
    features: list[float] | msgspec.UnsetType = _UNSET
    instances: list[_Listed] | msgspec.UnsetType = _UNSET


_NAMED, _LISTED = msgspec.json.Decoder(_NamedRequest).decode, msgspec.json.Decoder(_ListedRequest).decode


def read(body: bytes, identity: Identity, max_instances: int) -> tuple[list[Features], bool]:
    """The instances of a request body, and whether they came as `instances`; raises Rejected."""
    listed = identity.features == "positional"
    refused = ""
    try:
        request: Any = (_LISTED if listed else _NAMED)(body)
        many = request.instances is not _UNSET
        if many == (request.features is not _UNSET):
            raise Rejected("missing-field", "one of 'features' and 'instances' is needed")
        found: list[Any] = [i.features for i in request.instances] if many else [request.features]
        # As many colons as members: nothing is given twice or unknown. See events.Decoder.
        members = 1 + (len(found) if many else 0) + (0 if listed else sum(map(len, found)))
        if body.count(b":") == members and len(found) <= max_instances and all(certain(f, identity) for f in found):
            return found, many
    except Rejected:
        pass
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        refused = str(error)
    examined = _examine(body, identity, max_instances)
    if refused:  # a NaN where nobody looks: for Python it is JSON
        raise Rejected("not-json", refused)
    return examined


def _examine(body: bytes, identity: Identity, max_instances: int) -> tuple[list[Features], bool]:
    """As `read`, with the standard library: slow, and it knows what to say."""
    request = parse(body)
    if not isinstance(request, Members):
        raise Rejected("wrong-type", f"expected an object, got {kind(request)}")
    members = request.once(("features", "instances"))
    if len(members) != 1:
        raise Rejected("missing-field", "expected one of 'features' and 'instances'", "/features")
    if "features" in members:
        return [_features(members["features"], identity, "/features")], False
    instances = members["instances"]
    if isinstance(instances, Members) or not isinstance(instances, list):
        raise Rejected("wrong-type", f"'instances' must be a list, got {kind(instances)}", "/instances")
    if len(instances) > max_instances:
        raise Rejected("too-large", f"{len(instances)} instances; the limit is {max_instances}", "/instances")
    found = []
    for i, instance in enumerate(instances):
        pointer = f"/instances/{i}"
        if not isinstance(instance, Members):
            raise Rejected("wrong-type", f"an instance must be an object, got {kind(instance)}", pointer)
        given = instance.once(("features",))
        if "features" not in given:
            raise Rejected("missing-field", "'features' is missing", f"{pointer}/features")
        found.append(_features(given["features"], identity, f"{pointer}/features"))
    return found, True


def _features(value: Any, identity: Identity, pointer: str) -> Features:
    check_features(value, identity, pointer)
    if isinstance(value, Members):
        return {name: float(v) for name, v in value}
    return [float(v) for v in value]


def answer(learner: Learner, features: Features, explain: bool = False) -> dict[str, Any]:
    """Label, score, and how many of the features the model has never seen; with `explain`, each known one's share."""
    answered = shown(learner, *learner.score(features))
    if explain:
        answered["contributions"] = contributions(learner, learner.served, features)
    return answered


def shown(learner: Learner, score: float, unknown: int) -> dict[str, Any]:
    """An answer to one instance."""
    return {"label": learner.label(score), "score": score, "unknown_features": unknown}


def contributions(learner: Learner, w: NDArray[np.float64], features: Features) -> list[dict[str, Any]]:
    """The terms of a score under these weights, largest first."""
    terms = [("bias", 1.0, float(w[0]))]
    known = learner.columns.explain(features)
    terms += [(name, value, float(w[column])) for name, column, value in known if column < len(w)]
    rows: list[dict[str, Any]] = [
        {"name": name, "value": x, "weight": weight, "product": weight * x} for name, x, weight in terms
    ]
    return sorted(rows, key=lambda row: -abs(row["product"]))


def check_explained(instances: Sequence[Features], before: int = 0) -> int:
    """How many features these have; raises Rejected where, with those `before`, it is too many to be explained."""
    count = sum(map(len, instances))
    if before + count > MAX_EXPLAINED:
        what = f"at most {MAX_EXPLAINED:,} features can be explained in one request"
        raise Rejected("too-large", what, "/instances")
    return count


def check_finite(answers: Sequence[dict[str, Any]], many: bool, first: int = 0) -> None:
    """Refuse features whose score overflows: JSON has no infinity. `first` is the number of the first instance."""
    for i, one in enumerate(answers, first):
        if not math.isfinite(one["score"]):
            where = f"/instances/{i}/features" if many else "/features"
            raise Rejected("not-finite", "the score is beyond what a number can hold", where)
