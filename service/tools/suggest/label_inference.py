"""The label of a sample's records: the likeliest member, or the requested one."""

import json
import re
from collections import defaultdict

from service.errors import DataError
from service.learning.evaluation.confusion import CURE
from service.learning.events.json_values import Path, parse_pointer, value_in
from service.learning.events.text_hints import label_meaning, spelling
from service.learning.identity import MAX_CLASSES, Label, listed
from service.settings.model import canonical_label
from service.text import did_you_mean, printable, short_json
from service.tools.suggest.field_profile import FieldProfile, member_at, profile_fields
from service.tools.suggest.sample import Sample

GENERAL_NAMES = {"label", "labels", "target", "y", "class"}
NAMES = GENERAL_NAMES | {
    "outcome", "clicked", "click", "converted", "conversion", "churned", "churn", "fraud", "spam", "default",
    "purchased", "bought", "cancelled", "survived", "success", "subscribed", "approved", "won", "result", "status",
    "attrition", "dead", "died",
}  # fmt: skip
"""Frequent names of labels."""
MAX_TEXTS = 20
"""A member with more texts is not a likely label unless its name is a label's."""
MAX_AMOUNTS = 50
"""A label of more numbers is probably an amount."""
MAX_NAME_SCORE = 4
POSITIVE_TEXTS = {"yes", "y", "true", "1", "positive", "pos", "on", "win", "won", "pass", "passed", "success"}


def find_label(sample: Sample, outer: Path, requested: str | None, is_own_form: bool) -> tuple[Path, str, list[Path]]:
    """The path of the label in the whole record, why it is the label, and the next likeliest members.

    It is the requested label, else that of the service's own form, else the likeliest member of the object at `outer`.
    Raises DataError if there is none.
    """
    objects = (value_in(record, outer) for record in sample.objects())
    members = profile_fields([value for value in objects if isinstance(value, dict)])
    if requested is not None:
        return _requested_path(sample, outer, members, requested), "--label says so", []
    if is_own_form and any("label" in record for record in sample.objects()):
        return ("label",), "the service's own form has it there", []
    best_name = max((name_score(path[-1]) for path in members), default=0)
    for path, member in members.items():
        if name_score(path[-1]) == best_name > 2 and {*map(label_meaning, _values(member))} == {"false", "true"}:
            _raise_if_spelled_differently(sample, member, printable(member.name))
    likely, named = _likely_labels(members), [m for m in members.values() if m.path[-1].lower() in GENERAL_NAMES]
    faults = "".join(f"; {printable(member.name)} {_fault(member)}" for member in named if _fault(member))
    if not likely:
        odd = "".join(f"; {note}" for member in members.values() for note in member.notes())
        why = f"no member looks like a label: name it with --label{faults}{odd}; {_listed(members)}"
        raise DataError(f"{sample.name}: {why}")
    path, *others = [(*outer, *member.path) for member in likely]
    by_name = f"named {path[-1]} and " if name_score(path[-1]) else ""
    return path, f"{by_name}a {likely[0].kind} of {likely[0].distinct:,} values{faults}", others


def _requested_path(sample: Sample, outer: Path, members: dict[Path, FieldProfile], requested: str) -> Path:
    """The path that --label names by its pointer, its flattened name, or its last name if there is one such member."""
    pointer = parse_pointer(requested)
    if pointer and member_at(sample.objects(), pointer).present:
        return pointer
    whole = [path for path, member in members.items() if member.name == requested]
    last = [path for path in members if path[-1] == requested]
    if whole or len(last) == 1:
        return (*outer, *(whole or last)[0])
    near = did_you_mean(requested.removeprefix("/").replace("/", "."), [each.name for each in members.values()])
    raise DataError(printable(f"--label: no record of {sample.name} has '{requested}'{near}; {_listed(members)}"))


def _listed(members: dict[Path, FieldProfile]) -> str:
    return f"the members are {listed([member.name for member in members.values()]) or 'none'}"


def _likely_labels(members: dict[Path, FieldProfile]) -> list[FieldProfile]:
    """The members that may be the label, the likeliest first; of equals the later one first."""
    records = max((member.present for member in members.values()), default=0)

    def may_be_label(member: FieldProfile) -> bool:
        if _fault(member) or member.path[-1].startswith("__"):
            return False
        few_texts = member.kind == "string" and member.distinct <= MAX_TEXTS
        score = name_score(member.path[-1])
        is_named = score == MAX_NAME_SCORE or (score > 1 and not is_amount(member))
        return member.distinct == 2 or ((few_texts or is_named) and not member.mark(records))

    def likelihood(member: FieldProfile) -> float:
        values = {value for _, value in member.counts}
        kind = 2.0 if member.kind == "boolean" else 1.0 if values in ({0, 1}, {-1, 1}) else 0.0
        shape = 4.0 * (member.distinct == 2) + 0.5 * (len(member.path) == 1)
        absent = 1.0 - member.present / records  # such records are dead letters
        return 2.0 * name_score(member.path[-1]) + kind + shape - 2.0 * absent

    return sorted(filter(may_be_label, reversed(members.values())), key=likelihood, reverse=True)


def name_score(name: str) -> int:
    """A score of how likely a name is the name of a label, from 0 to MAX_NAME_SCORE."""
    words = re.split(r"[_\W]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())
    bare = "_".join(word for word in words if word not in ("is", "has", "was", "did"))
    if bare in NAMES:
        return MAX_NAME_SCORE if bare in GENERAL_NAMES else 3
    return 2 if NAMES & set(words) else 1 if len(words) == 1 and name.endswith("ed") else 0


def _fault(member: FieldProfile) -> str | None:
    """The reason why a member cannot be a label; None if it can."""
    if member.kind not in ("boolean", "number", "string"):
        return f"has values of kind {member.kind}: labels are all booleans, all numbers or all strings"
    if member.distinct < 2:
        return f"is always {short_json(member.example)}: a label has two values; if it is sorted by its label, {CURE}"
    if member.distinct > MAX_CLASSES:
        return f"has {member.distinct:,} values: a label has at most {MAX_CLASSES:,}"
    if member.distinct > 2 and 2 * member.distinct > member.present:
        return f"has {member.distinct:,} values in {member.present:,} records: the values of a label recur"
    return None


def is_amount(member: FieldProfile) -> bool:
    """Whether the values of a member are probably amounts, not classes."""
    if member.kind != "number" or member.distinct == 2:
        return False
    return member.distinct > MAX_AMOUNTS or any(value != int(value) for _, value in member.counts)


def label_values(sample: Sample, path: Path, called: str) -> tuple[list[Label], str, FieldProfile]:
    """The labels (of two, the negative one first), the reason for their order, and the member. Raises DataError."""
    member = member_at(sample.objects(), path)
    _raise_if_spelled_differently(sample, member, printable(called))
    if fault := _fault(member):
        raise DataError(f"{sample.name}: label: {printable(called)} {fault}")
    counts: dict[Label, int] = {canonical_label(value): count for (_, value), count in member.counts.items()}
    if len(counts) > 2:
        example = max(counts, key=counts.__getitem__)
        labels, why = sorted(counts), f"the {len(counts):,} values of the sample; an event with another is rejected"
    else:
        texts = sorted(str(value) for value in counts)
        named = [text for text in texts if text.lower() in POSITIVE_TEXTS]
        example = max(counts) if member.kind != "string" else (named or sorted(texts, key=counts.__getitem__))[0]
        labels, why = [next(value for value in counts if value != example), example], "negative, positive"
        why += " (text, not booleans)" if {*texts} == {"false", "true"} and member.kind == "string" else ""
    return labels, f"{why}; {short_json(example)} is in {counts[example] / member.present:.1%} of the events", member


def _values(member: FieldProfile) -> list[Label]:
    return [canonical_label(value) for _, value in member.counts]


def _raise_if_spelled_differently(sample: Sample, member: FieldProfile, called: str) -> None:
    """Raise DataError if a label of the member has several spellings, such as `t`, `true` and 1."""
    values, groups = _values(member), defaultdict[str, list[Label]](list)
    meaning = label_meaning if {*map(label_meaning, values)} == {"false", "true"} else spelling
    for value in values:
        groups[meaning(value)].append(value)
    if 1 < len(groups) < member.distinct <= MAX_CLASSES:
        counts = ", ".join(f"{short_json(value)} {count:,}" for (_, value), count in member.counts.most_common(8))
        spelled = [sorted(groups[name], key=lambda value: not isinstance(value, bool)) for name in sorted(groups)]
        labels = [group if len(group) > 1 else group[0] for group in spelled]
        cure = f"send one spelling of each, or set labels = {json.dumps(labels, ensure_ascii=False)}"
        raise DataError(f"{sample.name}: label: {called} has labels in several spellings ({counts}): {cure}")
