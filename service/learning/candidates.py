"""Candidates: other rules or rates, learned side by side with a model from the same decoded and scaled batches.

Each is a classifier of its own over the model's columns, so it costs its updates alone. Its identity is the model's,
with other values in some of the members that are the rule's and the average's. That is state: with which identity,
since which offsets, and where it diverged, if it did. What the model itself is, or answers with, never depends on one.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import Classifier, diverges
from service.learning.columns import Columns
from service.learning.events.batch import Batch
from service.learning.identity import SUMS, Identity
from service.learning.options import Options


def stored_as(name: str, array: str) -> str:
    """The name under which a candidate's array is stored; none of a model has such a one."""
    return f"{name}/{array}"


def arrays_of(identity: Identity) -> list[str]:
    """Those that a candidate has of its own: what values are scaled by is the model's."""
    return [array for array in identity.arrays if array not in SUMS]


class Candidate(Classifier):
    """One of them; `since` are the next offsets when it began, by partition."""

    def __init__(self, identity: Identity, columns: Columns, options: Options, since: Mapping[int, int]) -> None:
        super().__init__(identity, columns, options)
        self.since = dict(since)
        self.diverged_at: tuple[int, int] | None = None
        """Partition and offset of the event that it stopped before, if it did."""

    def begin(self) -> None:
        """Have the weights that these columns begin with."""
        self.make_room(len(self.columns))
        self.watch.grow(self.weights, 0)

    def follow(self, batch: Batch, known: int, partition: int, first: int) -> NDArray[np.bool_] | None:
        """Learn what the model learned, whose first record is at offset `first`: was its prediction of each right?

        `known` is how many columns there were before. None where it has diverged, and then nothing is changed.
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
        self.diverged_at, self.diverged = (partition, offset), diverges(self.identity, partition, offset)
