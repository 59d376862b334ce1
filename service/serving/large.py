"""A large request, read and answered beside the event loop, so that nobody else waits for it.

A thread helps only where no single step of it holds the interpreter for long, so all of it is done in pieces: a
compiled scan finds where the elements of `instances` begin and end, and runs of them go through the very reader of
small requests, as requests of their own. One instance has a limit therefore. One moment of the model answers.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.compiled import compiled
from service.learning.events import Batch
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.passes import scored
from service.learning.scanner import MAX_DEPTH
from service.serving import predict
from service.serving.predict import Features

LARGE = 32 << 10
"""Bytes of a body from which on it is read beside the loop, and of the elements that are read at once."""
LARGEST_PIECE = 1 << 20
"""Bytes of one instance, and of all that is not `instances`; more where a record of the model may have more."""
MOST_VALUES = 100_000
"""Commas in such a piece; more where an event of the model may have more features."""
_INSTANCES = np.frombuffer(b"instances", np.uint8)


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
        scores, _ = scored(Batch(*rows, none, none, []), w)
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
    commas = np.empty(max_instances, np.int64)
    depth, begin, end, count = _scan(np.frombuffer(body, np.uint8), _INSTANCES, MAX_DEPTH, commas)
    if depth > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    rest = body[:begin] + body[end:]  # all of it where there are no instances
    _check_size(rest, identity, "")
    read = predict.read(rest, identity, max_instances)
    if begin == end or not (count or body[begin:end].strip(b" \t\n\r")):
        yield read
        return
    if count >= max_instances:
        raise Rejected("too-large", f"{count + 1} instances; the limit is {max_instances}", "/instances")
    edges = [begin - 1, *commas[:count].tolist(), end]
    first = 0
    for i in range(1, count + 2):
        if i <= count and edges[i + 1] - edges[first] <= LARGE:
            continue
        piece = body[edges[first] + 1 : edges[i]]
        _check_size(piece, identity, f"/instances/{first}")
        if not piece.strip(b" \t\n\r"):
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


@compiled
def _scan(raw: Any, name: Any, deepest: int, commas: Any) -> tuple[int, int, int, int]:
    """How deep JSON is nested, where the one array of this name in the outermost object begins and ends, and how many
    commas there are between its elements, with the places of the first of them. No array, or several: from 0 to 0.

    Brackets of one kind are as good as those of the other: what stands between them is read afterwards.
    """
    depth, most, begin, end, count = 0, 0, 0, 0, 0
    inside, many = False, False
    start, stop = 0, 0  # of the last string
    i, n = 0, len(raw)
    while i < n:
        c = raw[i]
        if c == 34:  # a string, to its end or that of the bytes
            start = i + 1
            i += 1
            while i < n and raw[i] != 34:
                i += 2 if raw[i] == 92 else 1
            stop = i
        elif c in (91, 123):
            if c == 91 and depth == 1 and stop - start == len(name) and (raw[start:stop] == name).all():
                many = many or end > 0
                begin, inside = i + 1, True
            depth += 1
            most = max(most, depth)
            if most > deepest:
                return most, 0, 0, 0
        elif c in (93, 125):
            depth -= 1
            if inside and depth == 1:
                end, inside = i, False
        elif c == 44 and inside and depth == 2:
            if count < len(commas):
                commas[count] = i
            count += 1
        i += 1
    return (most, 0, 0, 0) if many or inside else (most, begin, end, count)
