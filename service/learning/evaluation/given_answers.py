"""How often the answers that were given to requests were right. These figures are observations, not state."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.evaluation.prequential import LastValues

ALL = ""
"""The name of the tally of all answers."""
NOT_ASKED = -1


class GivenAnswer(NamedTuple):
    """The answer that was given about a record: the index of the label, and the candidate that answered, if one did."""

    record: int
    label_index: int
    candidate: str


class Tally:
    """How many answers were right, of all and of the last ones."""

    def __init__(self, window: int, events: int = 0, right: int = 0, last: NDArray[np.bool_] | None = None) -> None:
        self.events, self.right = events, right
        self.last = LastValues(window, np.zeros(0, bool) if last is None else last)

    def add(self, right: NDArray[np.bool_]) -> None:
        """Add answers, by whether each was right."""
        self.events += len(right)
        self.right += int(right.sum())
        self.last.add(right)


class GivenAnswers:
    """The tally of all answers, and of those of each candidate.

    >>> given = GivenAnswers(window=10, classes=2)
    >>> given.add(given.codes(3, [GivenAnswer(0, 1, ""), GivenAnswer(2, 1, "b")]), np.array([1, 1, 0]))
    >>> {name: (tally.events, tally.right) for name, tally in given.tallies.items()}
    {'': (2, 1), 'b': (1, 0)}
    """

    def __init__(self, window: int, classes: int) -> None:
        self._window, self._classes, self._candidates = window, classes, [ALL]
        self.tallies: dict[str, Tally] = {}
        """By ALL, or the name of a candidate."""

    def codes(self, count: int, answers: Iterable[GivenAnswer]) -> NDArray[np.int32]:
        """A number for each of `count` records that stands for its answer; NOT_ASKED if there is none."""
        codes = np.full(count, NOT_ASKED, np.int32)
        for record, label_index, candidate in answers:
            if candidate not in self._candidates:
                self._candidates.append(candidate)
            codes[record] = self._candidates.index(candidate) * self._classes + label_index
        return codes

    def add(self, codes: NDArray[np.int32], truth: NDArray[np.intp]) -> None:
        """Add events that were learned: the codes of their answers, and the indices of their labels."""
        asked = codes >= 0
        candidates, labels = np.divmod(codes[asked], self._classes)
        right = labels == truth[asked]
        for number in (0, *np.unique(candidates[candidates > 0]).tolist()):
            tally = self.tallies.setdefault(self._candidates[number], Tally(self._window))
            tally.add(right[candidates == number] if number else right)
