"""Where the parts of a record stand, by JSON Pointers (RFC 6901) through its objects, and the values there."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from service.errors import Rejected
from service.learning.forms import Packed, unpacked
from service.learning.scanner import WHITE, scan
from service.learning.values import UNSURE, Members, given, kind, members, outermost, parse, quick

Way = tuple[str, ...]
"""The names of a pointer, from the outermost object inwards. Of the whole record there are none."""


def way(pointer: str) -> Way:
    """The names that a pointer goes through.

    >>> way("/after/a~1b"), way("")
    (('after', 'a/b'), ())
    """
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:])


def pointer_to(names: Sequence[str]) -> str:
    """The pointer that goes through these names."""
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def shown(pointer: str) -> str:
    """What a part of a record is called: by its own name."""
    return f"'{pointer.rpartition('/')[2]}'" if pointer else "the record"


def values_at(raw: bytes, ways: Sequence[Way], most: int, pointer: str = "") -> list[Any]:
    """What stands at each way in an object's JSON or MessagePack, UNSET where nothing does.

    The first is read whole: of more than `most` values the fault is there in their place. Of the others it may be known
    only that they are a list or an object. `pointer` is where the object stands. Raises Rejected.
    """
    packed = raw.__class__ is Packed
    if (value := unpacked(raw) if packed else quick(raw)) is not UNSURE:
        if value.__class__ is not (Members if packed else dict):
            raise Rejected("wrong-type", f"expected an object, got {kind(value)}", pointer)
        found = [_within(value, one, pointer) for one in ways]
    else:
        found = _looked_up(raw, ways, most, pointer)
    if len(raw) > most and _count(found[0]) > most:
        found[0] = _too_many(most, pointer + pointer_to(ways[0]))
    return found


def remove(value: Any, gone: Way, pointer: str) -> None:
    """Take what stands there out of a parsed value, if anything does; the value itself stands at `pointer`."""
    *outer, last = gone
    value = _within(value, tuple(outer), pointer)
    if value.__class__ is dict:
        value.pop(last, None)
    elif value.__class__ is Members:
        value[:] = [member for member in value if member[0] != last]


def _within(value: Any, inner: Way, pointer: str) -> Any:
    for name in inner:
        if value.__class__ is dict:
            value = value.get(name, UNSET)
            continue
        there = [v for n, v in members(value) or () if n == name]
        pointer += pointer_to([name])
        if len(there) > 1:
            raise Rejected("duplicate-feature", f"'{name}' is given twice", pointer)
        value = there[0] if there else UNSET
    return value


def _looked_up(raw: bytes, ways: Sequence[Way], most: int, pointer: str) -> list[Any]:
    """What `values_at` gives, carefully: the text is looked over, and only what stands at the ways is read."""
    heads = tuple(dict.fromkeys(one[0] for one in ways if one))
    # A value has a comma at most, and is a list or an object at most.
    limit = 2 * most + 1
    if not all(map(_plain, heads)) or (() in ways and scan(raw).parts <= limit):
        value = parse(raw)
        if members(value) is None:
            raise Rejected("wrong-type", f"expected an object, got {kind(value)}", pointer)
        return [_within(value, one, pointer) for one in ways]
    there, found = given(raw, heads, pointer), list[Any]()
    for i, (head, *inner) in enumerate(one or ("",) for one in ways):
        place, member = pointer + pointer_to([head]), there.get(head)
        if not ways[i]:
            found.append(_too_many(most, pointer))
        elif member is None:
            found.append(UNSET)
        elif inner:
            text = raw[member.start : member.end].strip(WHITE)
            found += _looked_up(text, [tuple(inner)], most, place) if text[:1] == b"{" else [UNSET]
        elif i:
            found.append(outermost(raw, member))
        else:
            found.append(_too_many(most, place) if member.parts > limit else parse(raw[member.start : member.end]))
    return found


def _plain(name: str) -> bool:
    """Whether a name in a text is these very bytes, or \\u escapes of them."""
    return name.isascii() and name.isprintable() and not set('"\\/') & set(name)


def _count(value: Any) -> int:
    """The members of objects and the values of lists in a value, at any depth."""
    inner = members(value)
    values = value if value.__class__ is list else [] if inner is None else [one for _, one in inner]
    return len(values) + sum(_count(one) for one in values if isinstance(one, list | dict))


def _too_many(most: int, pointer: str) -> Rejected:
    return Rejected("too-many-features", f"more features than the limit, which is {most}", pointer)
