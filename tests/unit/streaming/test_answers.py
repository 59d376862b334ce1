"""Answers that records bring in their headers are compared with the labels, and survive a restart."""

import json
from typing import Any

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.streaming.learn_loop import given_answers
from service.streaming.records import KafkaRecord
from tests.batches import join_records
from tests.checks import restored
from tests.partitions import P0


def test_answers_are_tallied_by_the_candidate_that_gave_them() -> None:
    learner = Learner(Identity(labels=(0, 1)))
    learner.add_candidate("b", Identity(labels=(0, 1), eta=0.5))
    learner.begin({P0: 0})

    def record(label: int, answer: Any, model: bytes = b"m", candidate: bytes | None = None) -> KafkaRecord:
        headers = [("model", model), ("prediction", json.dumps({"label": answer, "score": 0.5}).encode())]
        headers += [("candidate", candidate)] if candidate else []
        value = json.dumps({"features": {"a": 1}, "label": label}).encode()
        return KafkaRecord(len(records), 0, None, value, headers)

    records = list[KafkaRecord]()
    for arguments in ((1, 1), (0, 1), (1, 1, b"other"), (1, True), (1, [1]), (1, 7)):
        records.append(record(*arguments))
    records += [record(1, 1, candidate=b"b")]
    records += [record(1, 0, candidate=name) for name in (b"unknown", b"\xff")]
    records[-2:] = [each._replace(offset=i) for i, each in enumerate(records[-2:], len(records) - 2)]
    records.append(KafkaRecord(len(records), 0, None, b'{"features":{"a":1},"label":1}', ()))
    slice_ = join_records(records)
    assert learner.apply(slice_, None, [*given_answers(slice_, "m", learner)]).consumed == len(records)
    for each in (learner, restored(learner)):
        tallies = {name: (tally.events, tally.right) for name, tally in each.answers.tallies.items()}
        assert tallies == {"": (4, 2), "b": (1, 1)}
        assert each.answers.tallies[""].last.values.tolist() == [True, False, True, False]
