"""Notices that most of a topic's records are rejected. The log has one line for each reason, which does not show it."""

WINDOW_RECORDS = 1000
"""About this many of the last records count in full; older ones count half, a quarter, and so on."""
MIN_RECORDS = 10
"""Records below which nothing is reported."""


class Rejections:
    """Counts the rejected records among the last records of one topic."""

    def __init__(self) -> None:
        self.are_most = False
        """Whether most of the last records were rejected, until less than a quarter is."""
        self.records = 0.0
        self.reasons = dict[str, float]()
        """The rejected records, by reason."""

    def add(self, reason: str) -> None:
        """Count a record that was rejected. `add_records` counts it among all."""
        self.reasons[reason] = self.reasons.get(reason, 0.0) + 1.0

    def add_records(self, count: int) -> bool:
        """Count records that were read, the rejected ones included; returns whether `are_most` has changed."""
        self.records += count
        rejected, before = sum(self.reasons.values()), self.are_most
        if before:
            self.are_most = rejected >= self.records / 4
        else:
            self.are_most = self.records >= MIN_RECORDS and rejected > self.records / 2
        if self.are_most == before and self.records > WINDOW_RECORDS:
            self.records /= 2
            self.reasons = {reason: n / 2 for reason, n in self.reasons.items()}
        return self.are_most != before
