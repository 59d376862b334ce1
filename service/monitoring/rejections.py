"""Notices that most of a topic's records are rejected. The log has one line for each reason, which does not show it."""

from typing import NamedTuple

WINDOW_RECORDS = 1000
"""About this many of the last records count in full; older ones count half, a quarter, and so on."""
MIN_RECORDS = 10
"""Records below which nothing is reported."""


class MostlyRejected(NamedTuple):
    """Most of the last records were rejected: the numbers of both, and the most frequent reason."""

    rejected: int
    records: int
    reason: str


class Rejections:
    """Counts the rejected records among the last records of one topic."""

    def __init__(self) -> None:
        self._records = 0.0
        self._reasons = dict[str, float]()
        self._reported = False

    def add(self, reason: str) -> None:
        """Count a record that was rejected. `add_records` counts it among all."""
        self._reasons[reason] = self._reasons.get(reason, 0.0) + 1.0

    def add_records(self, count: int) -> MostlyRejected | bool:
        """Count records that were read, the rejected ones included, and return what to report, or False.

        That is MostlyRejected when most records begin to be rejected, and True when that is over.
        """
        self._records += count
        rejected = sum(self._reasons.values())
        if not self._reported and self._records >= MIN_RECORDS and rejected > self._records / 2:
            self._reported = True
            reason = max(self._reasons, key=self._reasons.__getitem__)
            return MostlyRejected(round(rejected), round(self._records), reason)
        if self._reported and rejected < self._records / 4:
            self._reported = False
            return True
        if self._records > WINDOW_RECORDS:
            self._records /= 2
            self._reasons = {reason: n / 2 for reason, n in self._reasons.items()}
        return False
