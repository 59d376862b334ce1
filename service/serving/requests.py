"""A prediction's request: bytes to the features of its instances, by the same rules as events.

A large one is read beside the event loop, and a thread helps only where no single step of it holds the interpreter for
long. So `pieces` finds by a compiled scan where the elements of the list begin and end, and reads runs of them like
small requests, as requests of their own. One instance has a limit therefore.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, get_args

import msgspec

from service.errors import Rejected
from service.learning.features import Features, Flattener, certain, names_in, numbers_of
from service.learning.identity import Identity, Mode
from service.learning.places import Way, pointer_to, shown, values_at
from service.learning.scanner import MAX_DEPTH, WHITE, Member, elements, refuse_constants, scan
from service.learning.values import given, kind, outermost

ONE = ("features", "event")
"""A request has one of them: what stands where an event has its features, or a whole record."""
MANY = {"instances": "features", "events": "event"}
"""Or one of these: a list of objects with features, or of whole records."""

LARGE = 32 << 10
"""Bytes of a body from which on it is read beside the loop, and of the elements that are read at once."""
LARGEST_PIECE = 1 << 20
"""Bytes of one instance, and of all that is not in a list of them; more where a record of the model may have more."""
MOST_VALUES = 100_000
"""Commas in such a piece; more where an event of the model may have more features."""
_NAMES = ", ".join(f"'{name}'" for name in (*ONE, *MANY))
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
    return msgspec.json.Decoder(request[numbers_of(mode)]).decode


_READERS = {mode: _reader(mode) for mode in get_args(Mode)}


def typed(body: bytes, mode: Mode) -> Any:
    """A request of plain numbers, as msgspec reads it; raises its errors."""
    return _READERS[mode](body)


def read(body: bytes, flattener: Flattener, max_instances: int) -> tuple[list[Features], str]:
    """The instances of a request body, and its form, of ONE or MANY; raises Rejected."""
    identity = flattener.identity
    if not flattener.plain:
        return _look(body, flattener, max_instances)
    try:
        request = typed(body, identity.features)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _look(body, flattener, max_instances)
    many = request.instances is not _UNSET
    one = [request.features] if request.features is not _UNSET else []
    found = [instance.features for instance in request.instances] if many else one
    # As many colons as members: nothing is given twice or unknown. See events.Decoder.
    members = 1 + (len(found) if many else 0)
    sure = many == (not one) and len(found) <= max_instances
    for features in found if sure else ():
        members += names_in(features)
        sure = sure and certain(features, identity)
    if not sure or body.count(b":") != members:
        return _look(body, flattener, max_instances)
    return found, "instances" if many else "features"


def _look(body: bytes, flattener: Flattener, max_instances: int) -> tuple[list[Features], str]:
    """What `read` gives, by every rule; raises Rejected with the first that is broken."""
    members = given(body, (*ONE, *MANY))
    if not members:
        raise Rejected("missing-field", f"expected one of {_NAMES}", "/features")
    if len(members) > 1:
        raise Rejected("wrong-type", f"expected only one of {_NAMES}, got {len(members)}")
    ((name, member),) = members.items()
    if name in ONE:
        one = _one(body, name, flattener, "", member)
        refuse_constants(body)  # where nobody looked
        return [one], name
    if (found := kind(outermost(body, member))) != "a list":
        raise Rejected("wrong-type", f"'{name}' must be a list, got {found}", f"/{name}")
    if member.items > max_instances:
        raise Rejected("too-large", f"{member.items} instances; the limit is {max_instances}", f"/{name}")
    edges = enumerate(elements(body, member))
    all_ = [_one(body[start:end], MANY[name], flattener, f"/{name}/{i}") for i, (start, end) in edges]
    refuse_constants(body)
    return all_, name


def _one(raw: bytes, name: str, flattener: Flattener, pointer: str, member: Member | None = None) -> Features:
    """The features of an instance, which is this text or has `member` in it, and stands at `pointer`."""
    way: Way = ("features",)
    if name == "event":
        way = flattener.way
        if member is not None:
            raw, pointer = raw[member.start : member.end], f"{pointer}/event"
    (value,) = values_at(raw, [way], flattener.identity.max_features, pointer)
    pointer += pointer_to(way)
    if value is _UNSET:
        raise Rejected("missing-field", f"{shown(pointer)} is missing", pointer)
    return flattener.of(value, pointer)


def pieces(body: bytes, flattener: Flattener, max_instances: int) -> Iterator[tuple[list[Features], str]]:
    """What `read` gives for the body, a piece at a time; raises Rejected."""
    found, identity = scan(body, (*ONE, *MANY)), flattener.identity
    if found.deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    name = next((name for name in MANY if name in found.members), "")
    many = found.members.get(name)
    listed = many is not None and found.twice is None and _LIST.fullmatch(body, many.start, many.end)
    if many is None or not listed or not many.items:
        _check_size(body, identity, "")
        yield read(body, flattener, max_instances)
        return
    begin, end = listed.span(1)
    rest = body[:begin] + body[end:]
    _check_size(rest, identity, "")
    read(rest, flattener, max_instances)
    if many.items > max_instances:
        raise Rejected("too-large", f"{many.items} instances; the limit is {max_instances}", f"/{name}")
    edges = elements(body, many)
    first = 0
    for i in range(1, len(edges) + 1):
        if i < len(edges) and edges[i][1] - edges[first][0] <= LARGE:
            continue
        piece = body[edges[first][0] : edges[i - 1][1]]
        _check_size(piece, identity, f"/{name}/{first}")
        if not piece.strip(WHITE):
            raise Rejected("not-json", f"instance {first} is missing", "")
        try:
            yield read(b'{"%s":[%s]}' % (name.encode(), piece), flattener, max_instances)
        except Rejected as rejected:
            raise _at(rejected, name, first) from None
        first = i


def _check_size(piece: bytes, identity: Identity, pointer: str) -> None:
    limit = max(LARGEST_PIECE, identity.max_record_bytes)
    if len(piece) > limit:
        raise Rejected("too-large", f"{len(piece)} bytes in one piece; the limit is {limit}", pointer)
    if piece.count(b",") > max(MOST_VALUES, 2 * identity.max_features):
        raise Rejected("too-large", "more values in one piece than features may be", pointer)


def _at(rejected: Rejected, name: str, first: int) -> Rejected:
    """What is wrong with a piece that begins with this instance, as of the whole request."""
    if not rejected.pointer.startswith(f"/{name}/"):
        detail = f"{rejected.detail}, in what begins with instance {first}"
        return Rejected(rejected.reason, detail, rejected.pointer)
    _, _, index, *rest = rejected.pointer.split("/")
    return Rejected(rejected.reason, rejected.detail, "/".join(("", name, str(int(index) + first), *rest)))


def of_body(rejected: Rejected, body: bytes) -> Rejected:
    """Why a request is rejected; of a body that is no JSON, in words that say so, where readers' own do not."""
    if rejected.reason != "not-json" or rejected.detail.startswith("nested"):
        return rejected
    if not body.strip(WHITE):
        return Rejected("not-json", f"the body is empty; expected an object with one of {_NAMES}")
    why = rejected.detail.removeprefix("JSON is malformed: ").replace("Input data was truncated", "it ends too early")
    return Rejected("not-json", f"the body is not JSON: {why[0].lower()}{why[1:]}", rejected.pointer)
