"""A large request, read and answered beside the event loop, so that nobody else waits for it.

A thread helps only where no single step of it holds the interpreter for long, so all of it is done in pieces: a
compiled scan finds where the elements of `instances` begin and end, and runs of them go through the very reader of
small requests, as requests of their own. One instance has a limit therefore. One moment of the model answers.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.events import Batch
from service.learning.features import Features
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.passes import scored
from service.learning.scanner import MAX_DEPTH, WHITE, elements, scan
from service.serving import predict
from service.serving.predict import MEMBERS

LARGE = 32 << 10
"""Bytes of a body from which on it is read beside the loop, and of the elements that are read at once."""
LARGEST_PIECE = 1 << 20
"""Bytes of one instance, and of all that is not `instances`; more where a record of the model may have more."""
MOST_VALUES = 100_000
"""Commas in such a piece; more where an event of the model may have more features."""
_LIST = re.compile(rb"[ \t\n\r]*\[(.*)\][ \t\n\r]*", re.DOTALL)


class Moment(NamedTuple):
    """A model as it is now: its weights are a copy, and columns that come later are not among them."""

    learner: Learner
    weights: NDArray[np.float64]


def moment(learner: Learner) -> Moment:
    """The model as it is in this turn of the loop."""
    return Moment(learner, np.array(learner.served))


def answer(
    now: Moment, body: bytes, max_instances: int, explain: bool
) -> tuple[list[dict[str, Any]], bool, Counter[Any]]:
    """The answers, whether they came as `instances`, and how many have each label; raises Rejected.

    For a thread: it reads of the learner only what does not change, and columns that are there for good.
    """
    learner, w = now
    answers: list[dict[str, Any]] = []
    many, explained = True, 0
    for found, many in _pieces(body, learner.identity, max_instances):
        starts, columns, values = array("Q", [0]), array("Q"), array("d")
        unknown = []
        for features in found:
            pairs, strange = learner.columns.find(features)
            known = [pair for pair in pairs if pair[0] < len(w)]
            columns.fromlist([column for column, _ in known])
            values.fromlist([value for _, value in known])
            starts.append(len(columns))
            unknown.append(strange + len(pairs) - len(known))
        none = np.zeros(len(found))
        rows = np.frombuffer(starts, np.uint64), np.frombuffer(columns, np.uint64), np.frombuffer(values)
        scores, _ = scored(Batch(*rows, none, none), w)
        piece = [predict.shown(learner, *shown) for shown in zip(scores.tolist(), unknown, strict=True)]
        predict.check_finite(piece, many, len(answers))
        if explain:
            explained += predict.check_explained(found, explained)
            for shown, features in zip(piece, found, strict=True):
                shown["contributions"] = predict.contributions(learner, w, features)
        answers += piece
    return answers, many, Counter(shown["label"] for shown in answers)


def _pieces(body: bytes, identity: Identity, max_instances: int) -> Iterator[tuple[list[Features], bool]]:
    """What `predict.read` gives for the body, a piece at a time; raises Rejected."""
    found = scan(body, MEMBERS)
    if found.deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    instances = found.members.get("instances")
    listed = instances is not None and found.twice is None and _LIST.fullmatch(body, instances.start, instances.end)
    if instances is None or not listed or not instances.items:
        _check_size(body, identity, "")
        yield predict.read(body, identity, max_instances)
        return
    begin, end = listed.span(1)
    rest = body[:begin] + body[end:]
    _check_size(rest, identity, "")
    predict.read(rest, identity, max_instances)
    if instances.items > max_instances:
        raise Rejected("too-large", f"{instances.items} instances; the limit is {max_instances}", "/instances")
    edges = elements(body, instances)
    first = 0
    for i in range(1, len(edges) + 1):
        if i < len(edges) and edges[i][1] - edges[first][0] <= LARGE:
            continue
        piece = body[edges[first][0] : edges[i - 1][1]]
        _check_size(piece, identity, f"/instances/{first}")
        if not piece.strip(WHITE):
            raise Rejected("not-json", f"instance {first} is missing", "")
        try:
            yield predict.read(b'{"instances":[' + piece + b"]}", identity, max_instances)
        except Rejected as rejected:
            raise _at(rejected, first) from None
        first = i


def _check_size(piece: bytes, identity: Identity, pointer: str) -> None:
    limit = max(LARGEST_PIECE, identity.max_record_bytes)
    if len(piece) > limit:
        raise Rejected("too-large", f"{len(piece)} bytes in one piece; the limit is {limit}", pointer)
    if piece.count(b",") > max(MOST_VALUES, 2 * identity.max_features):
        raise Rejected("too-large", "more values in one piece than features may be", pointer)


def _at(rejected: Rejected, first: int) -> Rejected:
    """What is wrong with a piece that begins with this instance, as of the whole request."""
    if not rejected.pointer.startswith("/instances/"):
        detail = f"{rejected.detail}, in what begins with instance {first}"
        return Rejected(rejected.reason, detail, rejected.pointer)
    _, name, index, *rest = rejected.pointer.split("/")
    return Rejected(rejected.reason, rejected.detail, "/".join(("", name, str(int(index) + first), *rest)))
