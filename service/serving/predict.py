"""A prediction: request bytes to features, by the same rules as events, then the same scoring as learning."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.features import Features, certain, examine, form_of, given, kind, names_in, outermost
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.scanner import elements

MEMBERS = ("features", "instances")
"""What a request has: one of them."""

MAX_EXPLAINED = 20_000
"""Contributions in one answer, which is made in one turn of the loop."""
_UNSET = msgspec.UNSET
_F = TypeVar("_F")


class _Instance(msgspec.Struct, Generic[_F]):
    features: _F


class _Request(msgspec.Struct, Generic[_F]):
    features: _F | msgspec.UnsetType = _UNSET
    instances: list[_Instance[_F]] | msgspec.UnsetType = _UNSET


@functools.cache
def _fast(form: Any) -> Callable[[bytes], Any]:
    request: Any = _Request
    return msgspec.json.Decoder(request[form]).decode


def read(body: bytes, identity: Identity, max_instances: int) -> tuple[list[Features], bool]:
    """The instances of a request body, and whether they came as `instances`; raises Rejected."""
    try:
        request = _fast(form_of(identity))(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _examine(body, identity, max_instances)
        raise Rejected("not-json", str(error)) from None  # a NaN where nobody looks: for Python it is JSON
    many = request.instances is not _UNSET
    one = [request.features] if request.features is not _UNSET else []
    found = [instance.features for instance in request.instances] if many else one
    # As many colons as members: nothing is given twice or unknown. See events.Decoder.
    members = 1 + (len(found) if many else 0) + sum(map(names_in, found))
    if not (
        many == (not one)
        and body.count(b":") == members
        and len(found) <= max_instances
        and all(certain(features, identity) for features in found)
    ):
        _examine(body, identity, max_instances, found)
    return found, many


def _examine(body: bytes, identity: Identity, max_instances: int, read: Sequence[Features] = ()) -> None:
    """Raise Rejected with the first rule that a request breaks; else nothing.

    `read` are the instances as msgspec has read them, where it has.
    """
    members = given(body, MEMBERS)
    if len(members) != 1:
        raise Rejected("missing-field", "expected one of 'features' and 'instances'", "/features")
    if "features" in members:
        examine(body, members["features"], identity, "/features", *read)
        return
    instances = members["instances"]
    if (found := kind(outermost(body, instances))) != "a list":
        raise Rejected("wrong-type", f"'instances' must be a list, got {found}", "/instances")
    if instances.items > max_instances:
        raise Rejected("too-large", f"{instances.items} instances; the limit is {max_instances}", "/instances")
    for i, (start, end) in enumerate(elements(body, instances)):
        one, pointer = body[start:end], f"/instances/{i}"
        member = given(one, MEMBERS[:1], pointer).get("features")
        if member is None:
            raise Rejected("missing-field", "'features' is missing", f"{pointer}/features")
        examine(one, member, identity, f"{pointer}/features", *read[i : i + 1])


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
