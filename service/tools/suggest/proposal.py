"""The settings of an event that a sample suggests: where features and label stand, what is left out, and why.

Two samples, one of events and one of labels that come later, suggest the settings of a join.
"""

import glob
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from service.errors import DataError
from service.learning.events.json_values import Path, parse_pointer, to_pointer, value_in
from service.learning.events.value_formats import ValueBuffer
from service.text import printable, short_json
from service.tools.suggest.field_profile import FieldProfile, leaves, profile_fields
from service.tools.suggest.label_inference import find_label, label_values, name_score
from service.tools.suggest.sample import Sample, parse_objects

FORMS = {
    "own": ("/features", "records have it: it is the service's own form"),
    "cloud": ("/data", "records are CloudEvents"),
    "changes": ("/after", "records are changes of rows, as Debezium writes them"),
    "rows": ("", "records are rows, as Debezium's ExtractNewRecordState leaves them"),
    "wrapped rows": ("/payload", "records are rows with their schema, as Kafka Connect writes them"),
    "wrapped changes": ("/payload/after", "records are changes of rows, as Debezium writes them with their schema"),
    "record": ("", "the whole record: no member holds the others"),
}
"""The forms of a record, each with the pointer to its features, and the reason for it."""
OPERATIONS = ["c", "u", "r"]
"""Debezium's creations, updates and snapshots; a deletion leaves nothing to learn."""
ROWS: dict[str, list[Any]] = {"__deleted": ["false", False], "__op": OPERATIONS}
"""Members that Debezium's ExtractNewRecordState adds to a row, with their values unless the row is deleted."""
TYPE_NAMES = ("type", "event_type", "eventType", "event")
MAX_TYPES = 50
WINDOWS = {"1m": 60, "10m": 600, "1h": 3600, "1d": 86_400, "7d": 604_800}
"""Windows that are compared, in seconds."""
ENOUGH_SHARE = 0.95
"""The shortest window is proposed within which this share of the labels came."""
LABEL = "label"
"""The member of a joined record that has its label."""


class Choice(NamedTuple):
    """A setting of the model, its value, and the reason, in one line or more."""

    setting: str
    value: Any
    reason: str


class EventChoices(NamedTuple):
    """The settings of an event, and the members that they rest on."""

    values: ValueBuffer
    """The records in the form in which they are to be sent."""
    places: list[Choice]
    """The settings besides those that say how members are read."""
    label: FieldProfile
    label_doubt: str
    """A line if no name of a member, or that of several, is a label's; else ""."""
    members: list[FieldProfile]
    """All members besides the label."""
    rows: list[Any]
    """The features of each record that has any."""
    row_labels: list[Any]
    """The label of each row."""

    @property
    def choices(self) -> list[Choice]:
        """All settings."""
        return [*self.places, *reading_choices(self.members)]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as those of a model."""
        settings: dict[str, Any] = {"event": {}}
        for choice in self.choices:
            section, _, key = choice.setting.rpartition(".")
            (settings[section] if section else settings)[key] = choice.value
        return settings


def choose_event(sample: Sample, requested_label: str | None, id_path: Path | None = None) -> EventChoices:
    """The settings that a sample suggests; raises DataError if it does not tell a label and features.

    The member at `id_path` is the event's id.
    """
    form = "record" if sample.is_table else Counter(map(_form_of_record, sample.objects())).most_common(1)[0][0]
    pointer, features_why = FORMS[form]
    path, label_why, likely = find_label(sample, parse_pointer(pointer), requested_label, form == "own")
    # The label and the next likeliest members, by their pointers, or by the names of their columns.
    called, *others = [member[-1] if sample.is_table else to_pointer(member) for member in (path, *likely)]
    perhaps = f"; else perhaps {', '.join(others[:3])} (--label)" if others else ""
    label_why += perhaps
    rival_score = max((name_score(member[-1]) for member in likely), default=0)
    is_sure = requested_label is not None or form == "own" or name_score(path[-1]) > max(rival_score, 1)
    doubt = "" if is_sure else f"label {printable(called)} is a guess{printable(perhaps)}"
    if sample.is_table:
        sample = _as_events(sample, called)
        form, pointer, path = "own", "/features", ("label",)
        features_why = f"so `perceptron produce --label {shlex.quote(called)}` sends a table's rows"
        label_why = f"the column {called}: {label_why}"
    where, outer = _where(sample, form, path), parse_pointer(pointer)
    sample = _records_that_match(sample, where)
    labels, labels_why, label = label_values(sample, path, called)
    label.name = called if sample.is_table else label.name
    pairs = [(value_in(record, outer), value_in(record, path)) for record in sample.objects()]
    is_list = 2 * sum(isinstance(features, list) for features, _ in pairs) > len(pairs)
    pairs = [pair for pair in pairs if isinstance(pair[0], list if is_list else dict)]
    events = [features for features, _ in pairs]
    profiles = profile_fields(events).values()
    members = [member for member in profiles if (*outer, *member.path) not in (path, id_path)]
    for member in () if is_list else members:
        member.judge(len(events))
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
    if all(member.readings == ["left out"] for member in members):
        why = (
            ", ".join(f"{printable(each.name)} ({each.note}: {each.marked.why})" for each in members[:5] if each.marked)
            or "there is none"
        )
        raise DataError(f"{sample.name}: no member besides the label {called} is a feature: {why}")
    if is_list:
        [(length, count)] = Counter(map(len, events)).most_common(1)
        choices.append(Choice("features", "positional", "features are lists of numbers"))
        choices.append(Choice("dimension", length, f"{count:,} of {len(events):,} lists have this many numbers"))
    else:
        choices.append(Choice("features", "named", "weights can be read by name"))
    return EventChoices(sample.values, choices, label, doubt, members, events, [label for _, label in pairs])


def reading_choices(members: Sequence[FieldProfile]) -> list[Choice]:
    """The settings that say how members are read."""
    choices, types, why = list[Choice](), dict[str, str](), list[str]()
    mixed = [member for member in members if member.reading == "as it is" and member.is_mixed]
    if mixed:
        names = ", ".join(printable(member.name) for member in mixed)
        choices.append(Choice("text", "number", f"most strings of {names} are numbers"))
    for member in members:
        is_text = member.kind == "string" and member.reading == "category" and not mixed  # it is a category anyway
        if member.reading not in ("as it is", "left out") and not is_text:
            types[glob.escape(member.name)] = member.reading
            better = f", better than {member.readings[0]}" if member.reading != member.readings[0] else ""
            why.append(f"{printable(member.name)}: {member.reading}, such as {short_json(member.example)}{better}")
    if types:
        choices.append(Choice("event.types", types, "\n".join(why)))
    left_out = {each.name: each.marked for each in members if each.marked and each.reading == "left out"}
    if left_out:
        lines = "\n".join(f"{printable(name)}: {mark.name}: {mark.why}" for name, mark in left_out.items())
        choices.append(Choice("event.without", [*map(glob.escape, left_out)], lines))
    return choices


def _form_of_record(record: dict[str, Any]) -> str:
    if isinstance(record.get("features"), dict | list):
        return "own"
    if isinstance(record.get("specversion"), str) and isinstance(record.get("data"), dict | list):
        return "cloud"
    for form, change in (("changes", record), ("wrapped changes", record.get("payload"))):
        if isinstance(change, dict) and "after" in change and change.get("op") in (*OPERATIONS, "d", "t"):
            return form
    if ROWS.keys() & record.keys():
        return "rows"
    return "wrapped rows" if "schema" in record and isinstance(record.get("payload"), dict) else "record"


def _as_events(sample: Sample, column: str) -> Sample:
    """The rows of a table as `perceptron produce` sends them."""
    rows = [*sample.objects()]
    labels = [{"label": row.pop(column)} if column in row else {} for row in rows]
    events = [json.dumps({"features": row, **label}).encode() for row, label in zip(rows, labels, strict=True)]
    return sample._replace(values=ValueBuffer.from_values(events))


def _where(sample: Sample, form: str, label: Path) -> dict[str, list[Any]]:
    """Which records are events: changes that leave a row, or the types of record that have the label."""
    if form.endswith("changes"):
        return {"/op" if form == "changes" else "/payload/op": OPERATIONS}
    records, outer = [*sample.objects()] if form != "own" else [], parse_pointer(FORMS[form][0])
    if form.endswith("rows"):
        for member, of_rows in ROWS.items():
            if all(value_in(record, (*outer, member)) is not None for record in records):
                return {to_pointer((*outer, member)): of_rows}
    for name in TYPE_NAMES:
        typed = [record for record in records if isinstance(record.get(name), str)]
        types = Counter(record[name] for record in typed)
        labelled = Counter(record[name] for record in typed if value_in(record, label) is not None)
        usual = [type_ for type_, count in types.most_common() if 2 * labelled[type_] > count]
        if len(typed) == len(records) and 0 < len(usual) < len(types) <= MAX_TYPES:
            return {f"/{name}": usual}
    return {}


def _records_that_match(sample: Sample, where: dict[str, list[Any]]) -> Sample:
    """The sample without the objects that `where` passes over."""
    paths = [(parse_pointer(pointer), values) for pointer, values in where.items()]

    def match(record: dict[str, Any] | None) -> bool:
        return record is None or all(value_in(record, path) in values for path, values in paths)

    matching = [i for i, record in enumerate(parse_objects(sample.values)) if match(record)]
    return sample._replace(values=sample.values[matching])


class JoinProposal(NamedTuple):
    """A sample of events with their labels, and the settings of the join."""

    sample: Sample
    id_path: Path
    """The path of the id in an event."""
    choices: list[Choice]
    shares: dict[str, float]
    """The share of labels that came within each window."""


def propose_join(events: Sample, labels: Sample) -> JoinProposal:
    """Join two samples by the members that have the most values in common; raises DataError if there are none."""
    rows, label_rows = ([*parse_objects(each.values)] for each in (events, labels))
    event_ids, label_ids = _texts(rows), _texts(label_rows)
    common = {pair: event_ids[pair[0]].keys() & label_ids[pair[1]].keys() for pair in product(event_ids, label_ids)}
    event_path, label_path = max(common, default=((), ()), key=lambda pair: (len(common[pair]), pair[0] == pair[1]))
    if not (ids := common.get((event_path, label_path))):
        raise DataError(f"{labels.name}: no member has the ids of {events.name}")
    joined = {event_ids[event_path][id_]: label_ids[label_path][id_] for id_ in ids}
    delays = np.array([labels.times[label] - events.times[event] for event, label in joined.items()]) / 1000
    shares = {window: float((delays <= seconds).mean()) for window, seconds in WINDOWS.items()}
    window = next((each for each, share in shares.items() if share >= ENOUGH_SHARE), "7d")
    within = ", ".join(f"{share:.0%} within {each}" for each, share in shares.items())
    choices = [
        Choice("event.id", to_pointer(event_path), f"{len(ids):,} of {len(label_ids[label_path]):,} labels name one"),
        Choice("join.topic", labels.name.removeprefix("topic "), "labels come in records of their own"),
        Choice("join.id", to_pointer(label_path), "it has the ids of the events"),
        Choice("join.window", window, f"of the labels came {within}"),
    ]
    path: Path | None = None
    with suppress(DataError):
        path, _, _ = find_label(labels, (), None, is_own_form=True)
    if path in (None, label_path):
        label_of, silent_label = dict.fromkeys(joined, 1), 0
        choices.append(Choice("join.label_value", 1, "no member tells labels apart: each record says 1"))
        choices.append(Choice("join.default_label", 0, "labels say only 1, so silence must mean 0"))
    else:
        label_of, silent_label = {event: value_in(label_rows[label], path) for event, label in joined.items()}, None
        choices.append(Choice("join.label", to_pointer(path), "its values are those of a label"))
    firsts = sorted(event_ids[event_path].values())  # an event that comes again is not another one
    labelled = ((rows[i] or {}, label_of.get(i, silent_label)) for i in firsts)
    values = [json.dumps(row | {LABEL: label}).encode() for row, label in labelled if label is not None]
    return JoinProposal(events._replace(values=ValueBuffer.from_values(values)), event_path, choices, shares)


def _texts(rows: list[dict[str, Any] | None]) -> dict[Path, dict[str, int]]:
    """The strings and integers at each path, as text, with the index of the first record that has each."""
    texts: dict[Path, dict[str, int]] = {}
    for i, row in enumerate(rows):
        for path, value in leaves(row or {}):
            if isinstance(value, str | int) and not isinstance(value, bool):
                texts.setdefault(path, {}).setdefault(str(value), i)
    return {path: values for path, values in texts.items() if len(values) > 1}
