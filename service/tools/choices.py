"""What a sample suggests an event to be: where its features and its label stand, what is left out, and why."""

import glob
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from service.errors import DataError
from service.learning.events.json_pointer import Path, parse_pointer, to_pointer
from service.learning.identity import MAX_WEIGHT, Label
from service.tools.labels import Form, Found, form_of, label_of, labels_of
from service.tools.profile import Member, at, kind_of, member_at, plain, pointer_of, profile
from service.tools.sample import Sample, read

EVERY_TYPE = 50
"""Types of records, at most: what has more values tells no types apart."""
CATEGORIES = 100_000
"""Of a million records: so many categories are better hashed than named."""
BITS = 20
MOST_WEIGHTS = 24
"""Of a table of columns for several labels: so many bits, which is 128 MB."""
TYPES = ("type", "event_type", "eventType", "event", "kind", "action")
IDS = ("id", "uuid", "event_id", "eventId")


class Choice(NamedTuple):
    """A setting of the model, its value, and the reason, in one line or more."""

    setting: str
    value: Any
    why: str


class Suggested(NamedTuple):
    """What events are, as far as the records say."""

    sample: Sample
    """The records as they are sent."""
    choices: list[Choice]
    label: Member
    members: list[Member]
    """The label, and the members of what holds the features."""
    events: int
    """How many these were looked for in."""
    left_out: dict[str, str]
    """Marks, by the names of members that are left out."""
    others: list[str]
    """Pointers of what else may be the label, likeliest first."""


def suggested(sample: Sample, wanted: str | None) -> Suggested:
    """What a sample says; `wanted` is the label's pointer or name, where it is given. Raises DataError."""
    sample, form, found = _label(sample, wanted)
    form, meant = _narrowed(sample, form, parse_pointer(found.pointer))
    label = member_at(meant.objects(), parse_pointer(found.pointer), found.member.name)
    found = found._replace(member=label)
    labels, why = labels_of(found)
    events = [at(record, parse_pointer(form.features)) for record in meant.objects()]
    listed = 2 * sum(isinstance(one, list) for one in events) > len(events)
    events = [one for one in events if isinstance(one, list if listed else dict)]
    members = profile(events, len(events))
    parts = [
        part._replace(value=False, why="the label is there") if part.value == found.pointer else part
        for part in (_weight(meant, form), _id(meant, form, members, len(events)))
    ]
    taken = {found.pointer, *(part.value for part in parts)}
    features = [member for member in members.values() if pointer_of(form.features, member) not in taken]
    if not features:
        raise DataError(f"{sample.name}: beside the label {found.pointer} there is nothing to learn from")
    marks = {} if listed else {one.name: mark for one in features if (mark := one.mark(len(events)))}
    left_out = {name: mark for name, mark in marks.items() if mark.name != "empty"}
    if len(marks) == len(features):
        said = ", ".join(f"{plain(name)} ({mark.name})" for name, mark in [*marks.items()][:5])
        words = ", but its words are, as a list of them" if any(mark.name == "text" for mark in marks.values()) else ""
        raise DataError(f"{sample.name}: no member beside the label is a feature: {said}{words}")
    choices = [
        *(
            _positional(events)
            if listed
            else _mode([one for one in features if one.name not in marks], len(events), len(labels))
        ),
        Choice("labels", labels, why),
        Choice("event.features", form.features, form.why),
        *([Choice("event.where", form.where, _why_where(form))] if form.where else []),
        Choice("event.label", found.pointer, found.why),
        *parts,
    ]
    if left_out:
        patterns = [glob.escape(name) for name in left_out]
        why = "\n".join(f"{plain(name)}: {mark.name}: {mark.why}" for name, mark in left_out.items())
        choices.append(Choice("event.without", patterns, why))
    return Suggested(
        sample,
        choices,
        label,
        [label, *features],
        len(events),
        {name: mark.name for name, mark in left_out.items()},
        found.others,
    )


def _label(sample: Sample, wanted: str | None) -> tuple[Sample, Form, Found]:
    """The label, and what holds the features; the rows of a table become events."""
    if not sample.cells:
        form = form_of(sample)
        return sample, form, label_of(sample, form, wanted)
    found = label_of(sample, Form("table", "", "", {}), wanted)
    column = found.member.way[-1]
    sends = f"`perceptron produce --label {shlex.quote(column)}`"
    form = Form("table", "/features", f"so {sends} sends a table's rows", {})
    return _as_events(sample, column), form, found._replace(pointer="/label", why=f"the column {column}: {found.why}")


def _as_events(sample: Sample, column: str) -> Sample:
    """The rows of a table as `perceptron produce` sends them."""
    events = [
        json.dumps({"features": row} | ({} if (label := row.pop(column, None)) is None else {"label": label})).encode()
        for row in sample.objects()
    ]
    return sample._replace(values=[*events], cells=False)


def _narrowed(sample: Sample, form: Form, label: Path) -> tuple[Form, Sample]:
    """The form with `where`, where only some types of records have the label; and the records that are meant."""
    names = ("type",) if form.name == "cloud" else TYPES if form.name == "record" else ()
    for name in names:
        types, labelled, of = Counter[str](), Counter[str](), 0
        for record in sample.objects():
            of += 1
            if isinstance(value := record.get(name), str):
                types[value] += 1
                labelled[value] += at(record, label) is not None
        those: list[Label] = [value for value, count in types.most_common() if 2 * labelled[value] > count]
        if not (those and 2 <= len(types) <= EVERY_TYPE and types.total() == of) or label == (name,):
            continue
        if len(those) < len(types) or form.name == "cloud":
            form = form._replace(where={**form.where, to_pointer([name]): those})
            break
    ways = [(parse_pointer(pointer), values) for pointer, values in form.where.items()]
    meant = [
        raw
        for raw, record in zip(sample.values, map(read, sample.values), strict=True)
        if record is not None and all(at(record, place) in values for place, values in ways)
    ]
    return form, sample._replace(values=meant) if form.where else sample


def _why_where(form: Form) -> str:
    if form.name == "changes":
        return "created, updated and read rows: of a deleted one nothing is left to learn"
    return "these types of records have the label: others are passed over"


def _weight(sample: Sample, form: Form) -> Choice:
    if form.name not in ("own", "table"):
        return Choice("event.weight", False, "each event counts the same: name a pointer where one is to count more")
    values = [value for record in sample.objects() if (value := record.get("weight")) is not None]
    if all(kind_of(value) == "number" and 0 < value <= MAX_WEIGHT for value in values):
        return Choice("event.weight", "/weight", "our own form has it there, where an event is to count more or less")
    return Choice("event.weight", False, f"/weight is not always a number in (0, {MAX_WEIGHT:g}]")


def _id(sample: Sample, form: Form, members: dict[Path, Member], count: int) -> Choice:
    if form.name in ("own", "table", "cloud"):
        values = (record["id"] for record in sample.objects() if "id" in record)
        why = (
            "CloudEvents have it there" if form.name == "cloud" else "our own form has it there, where a record has one"
        )
        if all(kind_of(value) in ("string", "number") for value in values):
            return Choice("event.id", "/id", why)
    for name in IDS:
        member = members.get((name,))
        mark = member.mark(count) if member and set(member.kinds) <= {"string", "number"} else None
        if member and mark and mark.name == "identifier":
            return Choice("event.id", pointer_of(form.features, member), f"{mark.name}: {mark.why}")
    return Choice("event.id", False, "no member is sure to name a record")


def _positional(lists: Sequence[Any]) -> list[Choice]:
    (length, count), *_ = Counter(map(len, lists)).most_common(1)
    every = "every list has" if count == len(lists) else f"of {len(lists):,} lists {count:,} have"
    return [
        Choice("features", "positional", "features are lists of numbers"),
        Choice("dimension", length, f"{every} so many"),
    ]


def _mode(features: Iterable[Member], count: int, labels: int) -> list[Choice]:
    """Named or hashed, as categories go on coming."""
    strings = [member for member in features if "string" in member.kind]
    found, late = sum(len(member.texts) for member in strings), sum(member.late for member in strings)
    pace = late / max(count - count // 2, 1)
    if count >= 2000 and pace * 1e6 > CATEGORIES:
        why = f"new categories still come, {pace:.2f} a record: names would use up the columns"
        bits = min(BITS, MOST_WEIGHTS - (labels - 1).bit_length())
        return [Choice("features", "hashed", why), Choice("bits", bits, f"a table of {1 << bits:,} columns")]
    said = f"{found:,} categories in the sample" if strings else "every feature has a name"
    return [Choice("features", "named", f"{said}, and weights can be read by name")]
