"""Candidates: other rules or rates, learned next to a model from the same decoded and scaled batches.

Each is a classifier of its own over the model's columns, so it costs only its updates. Its identity is the model's with
other values for the rule or the average. Its identity, the offsets where it began and the one where it diverged are
state. The model's own weights never depend on a candidate.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import Classifier, divergence_reason
from service.learning.columns.columns import Batch, Columns
from service.learning.identity import SUMS, Identity
from service.learning.options import Options


def stored_as(name: str, array: str) -> str:
    """The name under which a candidate's array is stored; the model's own arrays have no such names."""
    return f"{name}/{array}"


def arrays_of(identity: Identity) -> list[str]:
    """The names of a candidate's own arrays: it shares the sums that the model scales values by."""
    return [array for array in identity.arrays if array not in SUMS]


class Candidate(Classifier):
    """A candidate; `since` are the next offsets when it began, by partition."""

    def __init__(self, identity: Identity, columns: Columns, options: Options, since: Mapping[int, int]) -> None:
        super().__init__(identity, columns, options)
        self.since = dict(since)
        self.diverged_at: tuple[int, int] | None = None
        """Partition and offset of the event that it stopped before, if it did."""

    def begin(self) -> None:
        """Begin with the first weights of the columns."""
        self.make_room(len(self.columns))
        self.observations.grow(self.weights, 0)

    def follow(self, batch: Batch, known: int, partition: int, first: int) -> NDArray[np.bool_] | None:
        """Learn the batch that the model learned; returns which events it had predicted rightly.

        The first record is at offset `first`; `known` is how many columns there were before. Returns None, and changes
        nothing, once the candidate has diverged.
        """
        count = len(batch.labels)
        if self.diverged:
            batch = batch.first(0) if count else batch
        learned = self.learn(batch)
        done = len(learned.scores)
        if done < len(batch.labels):
            self.stop(partition, first + batch.records[done])
            batch = batch.first(done)
        self.count(batch, learned, known)
        right: NDArray[np.bool_] = (learned.averaged if self.averaged else learned.predicted) == learned.truth
        return None if self.diverged else right

    def stop(self, partition: int, offset: int) -> None:
        """Learn no more: the update at this offset would take the weights beyond their limit."""
        self.diverged_at, self.diverged = (partition, offset), divergence_reason(self.identity, partition, offset)
