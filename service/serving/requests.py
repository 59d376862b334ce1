"""A prediction's request: bytes to the features of its instances, by the same rules as events.

A large one is read beside the event loop, and a thread helps only where no single step of it holds the interpreter for
long. So `pieces` finds by a compiled scan where the elements of `instances` begin and end, and reads runs of them like
small requests, as requests of their own. One instance has a limit therefore.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args

import msgspec

from service.errors import Rejected
from service.learning.features import Features, certain, examine, form_of, given, kind, names_in, outermost
from service.learning.identity import Identity, Mode
from service.learning.scanner import MAX_DEPTH, WHITE, elements, scan

MEMBERS = ("features", "instances")
"""What a request has: one of them."""

LARGE = 32 << 10
"""Bytes of a body from which on it is read beside the loop, and of the elements that are read at once."""
LARGEST_PIECE = 1 << 20
"""Bytes of one instance, and of all that is not `instances`; more where a record of the model may have more."""
MOST_VALUES = 100_000
"""Commas in such a piece; more where an event of the model may have more features."""
_LIST = re.compile(rb"[ \t\n\r]*\[(.*)\][ \t\n\r]*", re.DOTALL)
_UNSET = msgspec.UNSET
_F = TypeVar("_F")


class _Instance(msgspec.Struct, Generic[_F]):
    features: _F


class _Request(msgspec.Struct, Generic[_F]):
    features: _F | msgspec.UnsetType = _UNSET
    instances: list[_Instance[_F]] | msgspec.UnsetType = _UNSET


def _reader(mode: Mode) -> Callable[[bytes], Any]:
    request: Any = _Request
    return msgspec.json.Decoder(request[form_of(mode)]).decode


_READERS = {mode: _reader(mode) for mode in get_args(Mode)}


def read(body: bytes, identity: Identity, max_instances: int) -> tuple[list[Features], bool]:
    """The instances of a request body, and whether they came as `instances`; raises Rejected."""
    try:
        request = _READERS[identity.features](body)
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


def pieces(body: bytes, identity: Identity, max_instances: int) -> Iterator[tuple[list[Features], bool]]:
    """What `read` gives for the body, a piece at a time; raises Rejected."""
    found = scan(body, MEMBERS)
    if found.deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    instances = found.members.get("instances")
    listed = instances is not None and found.twice is None and _LIST.fullmatch(body, instances.start, instances.end)
    if instances is None or not listed or not instances.items:
        _check_size(body, identity, "")
        yield read(body, identity, max_instances)
        return
    begin, end = listed.span(1)
    rest = body[:begin] + body[end:]
    _check_size(rest, identity, "")
    read(rest, identity, max_instances)
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
            yield read(b'{"instances":[' + piece + b"]}", identity, max_instances)
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
