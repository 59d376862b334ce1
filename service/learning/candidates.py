"""Candidates: other rules or rates, learned next to a model from the same decoded and scaled batches.

A candidate is a classifier over the model's columns, so it costs only its updates. Its identity is the model's with
another rule or average. Its identity, the offsets where it began and the offset where it diverged are state. The
model's own weights never depend on a candidate.
"""

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import Classifier
from service.learning.columns.columns import Batch, Columns
from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import PartitionId, Place


def stored_as(name: str, array: str) -> str:
    """The name of a candidate's array in a snapshot, different from the names of the model's own arrays."""
    return f"{name}/{array}"


class Candidate(Classifier):
    """A candidate. `since` has the next offsets when it began, by partition."""

    def __init__(self, identity: Identity, columns: Columns, options: Options, since: dict[PartitionId, int]) -> None:
        super().__init__(identity, columns, options)
        self.since = dict(since)

    def follow(self, batch: Batch, columns_before: int, place: Place) -> NDArray[np.bool_] | None:
        """Learn the batch that the model learned; returns which events it predicted rightly.

        `columns_before` is the number of columns before the batch.
        Returns None if the candidate has diverged, in this batch or before; after that no weight changes.
        """
        if self.diverged and len(batch.labels):
            batch = batch.first(0)
        batch, learned = self.learn(batch, place)
        self.count(batch, learned, columns_before)
        right: NDArray[np.bool_] = (learned.averaged if self.averaged else learned.predicted) == learned.truth
        return None if self.diverged else right
