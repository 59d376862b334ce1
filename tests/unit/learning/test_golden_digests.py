"""Golden state digests: each rule, feature mode, average, scale and number of labels over one stream of records.

`DIGEST` and `ROUNDED` were computed by the code of commit 1700426. They change only if the same records are to mean
something else, which is what `FOLD` in `learning/identity.py` is for.
"""

import functools
import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from service.learning import rules
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from service.snapshots.content import snapshot_content
from tests.checks import RULES, learner_of
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED

pytestmark = pytest.mark.usefixtures("reading")

DIGEST = "5e9016df0896ec4987a0c3b0ca71bb9c84556e16d5d9caad9cb29a2eaccb24d2"
"""SHA-256 over the state digests of all models whose rule is exact."""
ROUNDED = "d8396506c68ddce15c84f8704892ea1300a0305eb4de8ae308edc34e5c6b7fff"
"""SHA-256 over the rounded arrays of models with the logistic rule: the last bits of `exp` differ between CPUs."""
EVENTS = 300
DIMENSION = 5
MODES: dict[str, dict[str, Any]] = {
    "named": {"max_columns": 24},
    "positional": {"dimension": DIMENSION},
    "hashed": {"bits": 4},
}
LABELS = (None, ("no", "yes", 7))


@functools.cache
def stream(mode: str, labels: Sequence[Any] | None) -> list[bytes | None]:
    """Record values: most are usual events, some have what few events have, some are rejected."""
    rng = random.Random(17)
    records: list[bytes | None] = []
    odd = [raw for raw, _ in BAD_NAMED + BAD_POSITIONAL if raw is None or len(raw) < 1000]
    # A value or weight of the largest size would hide all later changes, or make the model diverge.
    odd += [raw for raw in GOOD_NAMED if not re.search(rb"1e30|1e6|\d{20}", raw) and len(raw) < 1000]
    for i in range(EVENTS):
        if mode == "positional":
            features: Any = [rng.choice([rng.gauss(0, 2), float(rng.randint(-3, 3)), 0.0]) for _ in range(DIMENSION)]
        else:
            features = {f"n{rng.randint(0, 11)}": rng.gauss(1, 3) for _ in range(rng.randint(0, 6))}
            extra: dict[str, Any] = {
                "b": rng.random() < 0.5, "c": rng.choice("xyz"), "é": rng.randint(-9, 9),
                "deep": {"d": rng.random(), "e": [1, rng.randint(0, 5)]}, "tags": ["t", rng.choice("uv"), "t"],
                "nothing": None,
            }  # fmt: skip
            features |= {name: extra[name] for name in rng.sample(sorted(extra), rng.randint(0, 3))}
        event: dict[str, Any] = {"features": features, "label": rng.choice(labels or (-1, 0, False, True, 1))}
        if rng.random() < 0.4:
            event["weight"] = rng.choice([0.1, 2, 0.75])
        if rng.random() < 0.1:
            event |= {"id": i, "more": [{"label": None}, "\n"]}
        records.append(json.dumps(event, ensure_ascii=rng.random() < 0.5).encode())
        if rng.random() < 0.2:
            records.append(rng.choice(odd))
    return records


def models(exact: bool) -> Iterator[tuple[Identity, WeightsFile | None]]:
    """Identities that differ in everything that the kernels distinguish, each with its start weights if it has any."""
    averages: list[dict[str, Any]] = [{}, {"average": True}, {"average": "recent", "half_life": 5}]
    for rule, mode, average, scale, labels in product(RULES, MODES, averages, ("none", "standard"), LABELS):
        rule_row = rules.RULES[RULES[rule].get("rule", "perceptron")]
        unit = rule_row is rules.RULES["threshold-unit"]
        unsupported = labels is not None and (not rule_row.classes or "margin" in RULES[rule])
        if rule_row.exact != exact or unsupported or (unit and average):
            continue
        start = None
        if unit:
            weights = np.random.default_rng(5).normal(size=DIMENSION if mode == "positional" else 16).tolist()
            names = [f"n{i}" for i in range(16)] if mode == "named" else None
            start = WeightsFile(weights, -0.5, names)
        members = {
            "eta": 0.002 if rule_row is rules.RULES["lms"] else 0.3,
            "start": start.identity if start else "random:3" if average else "zero",
            **RULES[rule], **MODES[mode], **average,
            "features": mode, "scale": scale, "labels": labels,
        }  # fmt: skip
        yield msgspec.convert(members, Identity), start


def train(identity: Identity, start: WeightsFile | None) -> Learner:
    """A learner after the whole stream, in slices of uneven sizes. Nothing else here calls `apply`."""
    learner, offset = learner_of(identity, start=start), 0
    records = stream(identity.features, identity.labels)
    rng = random.Random(3)
    while offset < len(records):
        outcome = learner.apply(Records.from_values(offset, records[offset : offset + rng.randint(1, 90)]))
        assert outcome.diverged is None
        offset += outcome.consumed
    return learner


def test_state_digests_have_not_changed() -> None:
    digests = [snapshot_content(train(*model)).head.state_digest for model in models(exact=True)]
    assert len(set(digests)) == len(digests) > 100
    assert hashlib.sha256("".join(digests).encode()).hexdigest() == DIGEST


def test_rounded_states_of_the_logistic_rule_have_not_changed() -> None:
    learners = [train(*model) for model in models(exact=False)]
    states = [
        {
            "identity": learner.identity, "counts": learner.main.counts,
            "covered": {str(partition): ranges for partition, ranges in learner.covered.items()},
            "names": [*learner.columns.names],
            "arrays": {name: [f"{value:.6e}" for value in array] for name, array in learner.arrays.items()},
        }
        for learner in learners
    ]  # fmt: skip
    assert len(states) == 36
    assert hashlib.sha256(msgspec.json.encode(states, order="sorted")).hexdigest() == ROUNDED
