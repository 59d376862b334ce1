"""The settings of an event that a sample suggests: where features and label stand, what is left out, and why."""

import glob
import json
import shlex
from collections import Counter
from typing import Any, NamedTuple

from service.errors import DataError
from service.learning.events.json_pointer import Path, parse_pointer, to_pointer
from service.learning.events.value_buffer import ValueBuffer
from service.text import printable
from service.tools.formats.readers import at
from service.tools.suggest.field_profile import FieldProfile, profile_fields
from service.tools.suggest.label_inference import find_label, label_values
from service.tools.suggest.sample import Sample, parse_objects

FORMS = {
    "own": ("/features", "records have it: it is the service's own form"),
    "cloud": ("/data", "records are CloudEvents"),
    "changes": ("/after", "records are changes of rows, as Debezium writes them"),
    "wrapped changes": ("/payload/after", "records are changes of rows, as Debezium writes them with their schema"),
    "record": ("", "the whole record: no member holds the others"),
}
"""The forms of a record, each with the pointer to its features, and the reason for it."""
OPERATIONS = ["c", "u", "r"]
"""Debezium's creations, updates and snapshots; a deletion leaves nothing to learn."""
TYPE_NAMES = ("type", "event_type", "eventType", "event")
MAX_TYPES = 50


class Choice(NamedTuple):
    """A setting of the model, its value, and the reason, in one line or more."""

    setting: str
    value: Any
    reason: str


class EventChoices(NamedTuple):
    """The settings of an event, and the members that they rest on."""

    values: ValueBuffer
    """The records in the form in which they are to be sent."""
    choices: list[Choice]
    labels: list[Any]
    label: FieldProfile
    members: list[tuple[FieldProfile, str]]
    """The label and all other members, each with its note: `label`, the name of its mark if it is left out, or ''."""


def choose_event(sample: Sample, requested_label: str | None, id_path: Path | None = None) -> EventChoices:
    """The settings that a sample suggests; raises DataError if it does not tell a label and features.

    The member at `id_path` is the event's id.
    """
    form = "record" if sample.is_table else Counter(map(_form_of_record, sample.objects())).most_common(1)[0][0]
    pointer, features_why = FORMS[form]
    path, label_why, likely = find_label(sample, parse_pointer(pointer), requested_label, form == "own")
    # The label and the next likeliest members, by their pointers, or by the names of their columns.
    called, *others = [member[-1] if sample.is_table else to_pointer(member) for member in (path, *likely)]
    label_why += f"; else perhaps {', '.join(others[:3])} (--label)" if others else ""
    if sample.is_table:
        sample = _as_events(sample, called)
        form, pointer, path = "own", "/features", ("label",)
        features_why = f"so `perceptron produce --label {shlex.quote(called)}` sends a table's rows"
        label_why = f"the column {called}: {label_why}"
    where, outer = _where(sample, form, path), parse_pointer(pointer)
    sample = _records_that_match(sample, where)
    labels, labels_why, label = label_values(sample, path, called)
    label.name = called if sample.is_table else label.name
    values = [at(record, outer) for record in sample.objects()]
    is_list = 2 * sum(isinstance(value, list) for value in values) > len(values)
    events = [value for value in values if isinstance(value, list if is_list else dict)]
    profiles = profile_fields(events).items()
    members = [member for inner, member in profiles if (*outer, *inner) not in (path, id_path)]
    choices = [
        Choice("labels", labels, labels_why),
        Choice("event.features", pointer, features_why),
        Choice("event.label", to_pointer(path), label_why),
    ]
    if where:
        choices.append(Choice("event.where", where, "other records have no label, and are passed over"))
    if form != "own":
        choices.append(Choice("event.weight", False, "each event counts the same, unless a pointer says its weight"))
    if form not in ("own", "cloud"):
        choices.append(Choice("event.id", False, "no member is sure to name a record"))
    marks = {} if is_list else {each.name: mark for each in members if (mark := each.mark(len(events)))}
    if all(member.name in marks for member in members):
        why = ", ".join(f"{printable(name)} ({mark.name})" for name, mark in [*marks.items()][:5]) or "there is none"
        raise DataError(f"{sample.name}: no member besides the label {called} is a feature: {why}")
    if is_list:
        [(length, count)] = Counter(map(len, events)).most_common(1)
        choices.append(Choice("features", "positional", "features are lists of numbers"))
        why = f"{count:,} of {len(events):,} lists have this many numbers"
        choices.append(Choice("dimension", length, why))
    else:
        choices.append(Choice("features", "named", "weights can be read by name"))
    if marks:
        why = "\n".join(f"{printable(name)}: {mark.name}: {mark.why}" for name, mark in marks.items())
        choices.append(Choice("event.without", [*map(glob.escape, marks)], why))
    rows = [(label, "label"), *((x, marks[x.name].name if x.name in marks else "") for x in members)]
    return EventChoices(sample.values, choices, labels, label, rows)


def _form_of_record(record: dict[str, Any]) -> str:
    if isinstance(record.get("features"), dict | list):
        return "own"
    if isinstance(record.get("specversion"), str) and isinstance(record.get("data"), dict | list):
        return "cloud"
    for form, change in (("changes", record), ("wrapped changes", record.get("payload"))):
        if isinstance(change, dict) and "after" in change and change.get("op") in (*OPERATIONS, "d", "t"):
            return form
    return "record"


def _as_events(sample: Sample, column: str) -> Sample:
    """The rows of a table as `perceptron produce` sends them."""
    rows = [*sample.objects()]
    labels = [{"label": row.pop(column)} if column in row else {} for row in rows]
    events = [json.dumps({"features": row, **label}).encode() for row, label in zip(rows, labels, strict=True)]
    return sample._replace(values=ValueBuffer.from_values(events))


def _where(sample: Sample, form: str, label: Path) -> dict[str, list[str]]:
    """Which records are events: changes that leave a row, or the types of record that have the label."""
    if form.endswith("changes"):
        return {"/op" if form == "changes" else "/payload/op": OPERATIONS}
    records = [*sample.objects()] if form != "own" else []
    for name in TYPE_NAMES:
        typed = [record for record in records if isinstance(record.get(name), str)]
        types = Counter(record[name] for record in typed)
        labelled = Counter(record[name] for record in typed if at(record, label) is not None)
        usual = [type_ for type_, count in types.most_common() if 2 * labelled[type_] > count]
        if len(typed) == len(records) and 0 < len(usual) < len(types) <= MAX_TYPES:
            return {f"/{name}": usual}
    return {}


def _records_that_match(sample: Sample, where: dict[str, list[str]]) -> Sample:
    """The sample without the objects that `where` passes over."""
    paths = [(parse_pointer(pointer), values) for pointer, values in where.items()]

    def match(record: dict[str, Any] | None) -> bool:
        return record is None or all(at(record, path) in values for path, values in paths)

    matching = [i for i, record in enumerate(parse_objects(sample.values)) if match(record)]
    return sample._replace(values=sample.values[matching])
