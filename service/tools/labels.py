"""Which member of the records is the label, and what holds the features: as the likeliest looks, or as it is told."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from service.errors import DataError
from service.learning.confusion import RARE
from service.learning.events.json_pointer import Path, parse_pointer
from service.learning.identity import MAX_CLASSES, Label
from service.settings.words import perhaps
from service.tools.profile import ENOUGH, Member, at, member_at, plain, pointer_of, profile, shown
from service.tools.sample import Sample, records

LABELS = {
    "label", "labels", "target", "y", "class", "outcome", "clicked", "click", "converted", "conversion", "churned",
    "churn", "fraud", "fraudulent", "spam", "default", "defaulted", "purchased", "bought", "cancelled", "canceled",
    "returned", "survived", "success", "responded", "subscribed", "approved", "won", "result", "status", "verdict",
    "decision",
}  # fmt: skip
PLAIN_LABELS = {"label", "labels", "target", "y", "class"}
"""Names that are the label's, however many values it has."""
FEW = 10
"""Values of a text that may be a label, whatever it is called."""
MOST_NAMED = 20
"""Members that an error names."""
YES = {"yes", "y", "true", "1", "positive", "pos", "on", "win", "won", "pass", "passed", "success"}


class Form(NamedTuple):
    """What holds the features in a record: a pointer, and which records are meant."""

    name: str
    features: str
    why: str
    where: dict[str, list[Label]]


class Found(NamedTuple):
    """The label."""

    pointer: str
    member: Member
    why: str
    others: list[str]
    """What else may be it, likeliest first, as it is called."""
    called: str
    """Its pointer, or the name of its column."""


def form_of(sample: Sample) -> Form:
    """What the records look like: as most of them do."""
    seen, of = Counter[str](), 0
    for record in sample.objects():
        of += 1
        inner = record.get("payload")
        seen["wrapped"] += _changes(inner)
        seen["changes"] += _changes(record)
        seen["cloud"] += isinstance(record.get("specversion"), str) and isinstance(record.get("data"), dict | list)
        seen["own"] += isinstance(record.get("features"), dict | list)
    form, count = seen.most_common(1)[0]
    if 2 * count <= of:
        return Form("record", "", "the whole record: no member holds the others", {})
    if form == "own":
        return Form("own", "/features", "records have it: it is our own form", {})
    if form == "cloud":
        return Form("cloud", "/data", "records are CloudEvents: they have specversion and data", {})
    outer = "/payload" if form == "wrapped" else ""
    why = "records are changes of rows, as Debezium writes them: after is the row as it then is"
    return Form("changes", f"{outer}/after", why, {f"{outer}/op": ["c", "u", "r"]})


def _changes(record: Any) -> bool:
    return isinstance(record, dict) and "after" in record and record.get("op") in ("c", "u", "d", "r", "t")


def label_of(sample: Sample, form: Form, wanted: str | None) -> Found:
    """The label: the one that is wanted, the one of our own form, or the likeliest. Raises DataError."""
    outer = parse_pointer(form.features)
    there = [one for record in sample.objects() if isinstance(one := at(record, outer), dict)]
    members = profile(there, len(there))
    candidates = _candidates(members)
    pointers = [pointer_of(form.features, one) for one in candidates]
    if wanted is None and form.name == "own" and (member := member_at(sample.objects(), ("label",))).present:
        return Found("/label", member, "our own form has it there", [], "/label")
    if wanted is not None:
        pointer, member, why = *_requested(sample, form, members, wanted), "--label says so"
    elif not candidates:
        raise DataError(
            f"{sample.name}: no member has two values, or is one of a few texts, so none can be the label: "
            f"--label names it; {_those(members)}"
        )
    else:
        pointer, member = pointers[0], candidates[0]
        why = f"named {member.way[-1]} and " if _named(member.way[-1]) else ""
        why += f"a {member.kind} of {'two' if member.distinct == 2 else f'{member.distinct:,}'} values"
    others = [_called(form, one) for one in pointers if one != pointer]
    if not _fits(member):
        raise DataError(f"{sample.name}: label: {_unfit(_called(form, pointer), member)}{_such(others)}")
    also = f"; else perhaps {', '.join(others[:3])} (--label)" if others and wanted is None else ""
    return Found(pointer, member, why + also, others, _called(form, pointer))


def _requested(sample: Sample, form: Form, members: dict[Path, Member], wanted: str) -> tuple[str, Member]:
    """The pointer and the member that --label names by pointer, flattened name or last name; raises DataError."""
    last = Counter(member.way[-1] for member in members.values())
    names = {one.way[-1]: one for one in members.values() if last[one.way[-1]] == 1}
    names |= {one.name: one for one in members.values()}
    pointer = pointer_of(form.features, names[wanted]) if wanted in names else wanted
    member = member_at(sample.objects(), parse_pointer(pointer))
    if not (pointer.startswith("/") and member.present):
        near = perhaps(wanted.removeprefix("/").replace("/", "."), names)
        raise DataError(f"--label: no record of {sample.name} has '{plain(wanted)}'{near}; {_those(members)}")
    return pointer, member


def _called(form: Form, pointer: str) -> str:
    return parse_pointer(pointer)[-1] if form.name == "table" else pointer


def _those(members: dict[Path, Member]) -> str:
    names = [plain(member.name) for member in members.values()]
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return f"the members are {', '.join(names[:MOST_NAMED]) or 'none'}{more}"


def _such(others: Sequence[str]) -> str:
    return f"; perhaps {', '.join(map(plain, others[:5]))}: --label takes one" if others else ""


def _candidates(members: dict[Path, Member]) -> list[Member]:
    """What may be the label, likeliest first: members of two values, or else text of a few.

    Then few-valued members with label-like names, then any few-valued text; of equals the later comes first. A member
    of several values that is called `label`, `target` or the like is before all but a two-valued one with such a name.
    """

    def likelihood(member: Member) -> float:
        values = {value for _, value in member.counts}
        kind = 2.0 if member.kind == "boolean" else 1.0 if values in ({0, 1}, {-1, 1}) else 0.0
        absent = 1.0 - member.present / most  # such records are dead letters
        return 2.0 * _named(member.way[-1]) + kind + (len(member.way) == 1) * 0.5 - 2.0 * absent

    most = max((member.present for member in members.values()), default=0)
    fitting = [one for one in reversed(members.values()) if _fits(one)]
    fitting.sort(key=likelihood, reverse=True)
    two = [one for one in fitting if one.distinct == 2]
    few = [one for one in fitting if one.distinct > 2 and one.kind != "boolean" and not one.mark(most)]
    if two:
        also = [one for one in few if _named(one.way[-1]) > 1 and not is_amount(one)]
        two[1:] = sorted([*two[1:], *also], key=likelihood, reverse=True)
        two += [one for one in few if one.kind == "string" and one.distinct <= FEW and one not in two]
    found = two or [one for one in few if one.kind == "string"]
    own = next((one for one in members.values() if one.way[-1].lower() in PLAIN_LABELS and one.distinct > 2), None)
    coordinate = own and not _fits(own) and own.way[-1] == "y" and (*own.way[:-1], "x") in members
    if own and not coordinate and not (two and two[0].way[-1].lower() in LABELS):
        found = [own, *(one for one in found if one is not own)]
    return found


def _named(name: str) -> int:
    """How much a name sounds like a label's."""
    words = re.split(r"[_\W]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())
    bare = "_".join(word for word in words if word not in ("is", "has", "was", "did"))
    if bare in LABELS:
        return 3
    return 2 if LABELS & set(words) else 1 if len(words) == 1 and name.endswith("ed") else 0


def is_called_one(member: Member) -> bool:
    """Whether its name is one that labels have."""
    return _named(member.way[-1]) == 3


def is_amount(member: Member) -> bool:
    """Whether its values are amounts rather than classes: many numbers, which seldom come back or are not whole."""
    many = member.distinct > ENOUGH
    seldom = 20 * member.distinct > member.values or member.distinct > 5 * ENOUGH or member.whole < member.distinct
    return member.kind == "number" and many and seldom


def amount(called: str, member: Member) -> str:
    """What to mind of such a label."""
    of = f"{member.distinct:,} different values of {records(member.values)}"
    return f"{plain(called)} has {of}: a number to be predicted is not a class, and only classes are learned"


def _fits(member: Member) -> bool:
    """Whether it may be a label: of two values, or of up to MAX_CLASSES that come back."""
    several = 2 < member.distinct <= MAX_CLASSES and 2 * member.distinct <= member.values
    return member.kind in ("boolean", "number", "string") and (member.distinct == 2 or several)


def labels_of(found: Found) -> tuple[list[Label], str]:
    """The labels, of two the negative one first, else in their order; and why so. Raises DataError."""
    member = found.member
    if not _fits(member):  # as where only some types of records have it
        raise DataError(f"label: {_unfit(found.called, member)}")
    if member.distinct > 2:
        counts = {value: count for (_, value), count in member.counts.items()}
        usual = max(counts, key=lambda one: counts[one])
        often = f"{shown(_whole(usual))} is in {counts[usual] / member.present:.1%} of the events"
        why = f"the {member.distinct:,} values of the sample, an event with another is set aside: {often}"
        why += f"; {amount(found.called, member)}" if is_amount(member) else ""
        return [_whole(one) for one in sorted(counts)], why
    (_, one), (_, other) = sorted(member.counts, key=lambda key: str(key[1]))
    if member.kind == "string":
        sure = next((value for value in (one, other) if value.lower() in YES), None)
        positive = sure or min((one, other), key=lambda value: member.counts[False, value])
        why = ", as the word says" if sure else ", the rarer"
    else:
        positive, why = max(one, other), "" if member.kind == "boolean" else ", the larger"
    negative = other if positive == one else one
    key = (member.kind == "boolean", positive)
    share = member.counts[key] / member.present
    said = f"negative, positive: {shown(_whole(positive))}{why}, in {share:.1%} of the events"
    return [_whole(negative), _whole(positive)], said


def rare(labels: Sequence[Label], member: Member) -> tuple[int | None, str]:
    """Which of two labels is rare, and what to mind then; (None, "") where none is."""
    counts = {value: count for (_, value), count in member.counts.items()}
    share, place = min((counts.get(label, 0) / max(member.present, 1), place) for place, label in enumerate(labels))
    if len(labels) > 2 or share >= RARE:
        return None, ""
    return place, (
        f"{shown(labels[place])} is in {share:.1%} of the events, where accuracy says little: its F1 decides, of "
        "recall and precision (docs/model.md)"
    )


def _whole(value: Any) -> Label:
    whole = isinstance(value, float) and value.is_integer()
    label: Label = int(value) if whole else value
    return label


def _unfit(called: str, member: Member) -> str:
    pointer = plain(called)
    if member.kind not in ("boolean", "number", "string"):
        return f"{pointer} has values of kind {member.kind}: a label is a boolean, a number or a string"
    if member.distinct < 2:
        return f"{pointer} is always {shown(member.example)}: a label has two values"
    values = ", ".join(shown(value) for _, value in [*member.counts][:4])
    found = f"{pointer} has {member.distinct:,} values ({values}{', …' * (member.distinct > 4)})"
    no_class = "; a number to be predicted is not a class" if is_amount(member) else ""
    if member.distinct > MAX_CLASSES:
        return f"{found}: a label has at most {MAX_CLASSES:,}{no_class}"
    return f"{found} in {records(member.present)}: those of a label come back{no_class}"
