"""The settings of a join that two samples suggest: one of events, one of labels that come later."""

import json
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from service.errors import DataError
from service.learning.events.json_pointer import Path, to_pointer
from service.learning.events.value_buffer import ValueBuffer
from service.tools.formats.readers import at
from service.tools.suggest.field_profile import leaves
from service.tools.suggest.label_inference import find_label
from service.tools.suggest.proposal import Choice
from service.tools.suggest.sample import Sample, parse_objects

WINDOWS = {"1m": 60, "10m": 600, "1h": 3600, "1d": 86_400, "7d": 604_800}
"""Windows that are compared, in seconds."""
ENOUGH_SHARE = 0.95
"""The shortest window is proposed within which this share of the labels came."""
LABEL = "label"
"""The member of a joined record that has its label."""


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
        label_of, silent_label = {event: at(label_rows[label], path) for event, label in joined.items()}, None
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
