"""The answers that records bring with them, in the headers that the log of predictions writes."""

from collections.abc import Iterator

import msgspec

from service.learning.evaluation.given_answers import ALL, GivenAnswer
from service.learning.identity import Label
from service.learning.learner import Learner
from service.streaming.records import KafkaRecords


class _Logged(msgspec.Struct):
    label: Label


def given_answers(records: KafkaRecords, model: str, learner: Learner) -> Iterator[GivenAnswer]:
    """The answers of this model; one that is damaged, or that is no label of the model, is left out.

    A candidate that the model does not have has no tally of its own: its answers count as the model's.
    """
    labels = {(isinstance(label, bool), label): i for i, label in enumerate(learner.identity.labels or (-1, 1))}
    for i in records.with_headers():
        headers = dict(records.record(i).headers)
        if headers.get("model") != model.encode():
            continue
        try:
            label = msgspec.json.decode(headers.get("prediction") or b"", type=_Logged).label
            candidate = (headers.get("candidate") or b"").decode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if (index := labels.get((isinstance(label, bool), label))) is not None:
            yield GivenAnswer(i, index, candidate if candidate in learner.candidates else ALL)
