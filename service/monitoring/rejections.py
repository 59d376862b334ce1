"""Whether most of a topic's records are rejected: one line for each reason would be all that shows it."""

from typing import NamedTuple

WINDOW = 1000
"""About so many of the last records count; older ones half, a quarter, and so on."""
LEAST = 10
"""Fewer records say nothing."""
AGAIN_SECONDS = 3600.0
"""So often it is said again, for whoever came to look later."""


class Mostly(NamedTuple):
    """Most records are rejected: so many of so many, and what is known of the newest one with the commonest reason."""

    rejected: int
    records: int
    example: dict[str, str]


class Rejections:
    """Of the last records of one topic."""

    def __init__(self) -> None:
        self._records = 0.0
        self._reasons = dict[str, float]()
        self._examples: dict[str, dict[str, str]] = {}
        self._said: float | None = None

    def add(self, reason: str, example: dict[str, str]) -> None:
        """A record was rejected; `add_records` counts it among all."""
        self._reasons[reason] = self._reasons.get(reason, 0.0) + 1.0
        self._examples[reason] = example

    def add_records(self, count: int, now: float) -> Mostly | bool:
        """So many records were read, some of them rejected: what is to be said at `now` (seconds), if anything.

        `Mostly` when it begins and once in AGAIN_SECONDS while it lasts, True when it is over.
        """
        self._records += count
        rejected = sum(self._reasons.values())
        if rejected > self._records / 2 and self._records >= LEAST:
            if self._said is None or now - self._said >= AGAIN_SECONDS:
                self._said = now
                reason = max(self._reasons, key=self._reasons.__getitem__)
                return Mostly(round(rejected), round(self._records), self._examples[reason])
        elif self._said is not None and rejected < self._records / 4:
            self._said = None
            return True
        if self._records > WINDOW:
            self._records /= 2
            self._reasons = {reason: n / 2 for reason, n in self._reasons.items()}
        return False
