"""How long a topic's log was out of sight.

A client that is there when its topic is deleted hears of it. One that was away hears nothing, and would go on at its
offset in a topic of the same name that was created meanwhile.
"""

import time
from collections.abc import Iterable
from typing import Any

from service.errors import DependencyError

AWAY_SECONDS = 3.0
"""Between two answers to fetches, which come twice a second where there is nothing new."""


class Sight:
    """When fetches of one topic were answered."""

    def __init__(self) -> None:
        self._answer, self._since = 0, time.monotonic()

    def compared(self) -> None:
        """The log was just compared with what was learned."""
        self._since = time.monotonic()

    def check(self, consumer: Any, partitions: Iterable[Any], log: str) -> None:
        """Raise DependencyError where the newest answer came long after the one before: compare again first."""
        assigned = consumer.assignment()
        answer = max((consumer.last_poll_timestamp(tp) or 0 for tp in partitions if tp in assigned), default=0)
        if answer == self._answer:
            return
        away = time.monotonic() - self._since
        self._answer, self._since = answer, time.monotonic()
        if away > AWAY_SECONDS:
            raise DependencyError(
                f"{log}: not seen for {away:.0f} s, so it is compared again with what was learned", "kafka"
            )
