"""The real clock, and the event loop's turns: how learning and predictions share it.

A request that is under way is answered before more is learned, and while any come slices of learning are short. Nobody
waits longer than the slice that is running, and where nobody asks none is shorter than it costs least.
"""

import asyncio
import time
from collections.abc import Callable, Collection

from service.streaming.learn import AIM_SECONDS

TURNS = 8
"""An answer takes three; one whose body is slow to arrive is not waited for."""
ALONE = 2
"""Before a short slice, so that what else was to go on, such as a request to Kafka, is no part of its turn: who asks
waits for all of a turn."""
ASKED_SECONDS = 0.02
"""After two requests within it slices are short for so long: while fifty come a second, and not for who looks ten times
a second, as a tenth of all time would go into it."""
SHORT, LONG = 0.0002, AIM_SECONDS
"""Of slices. What each costs by itself is a tenth of a long one."""


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self.under_way: Collection[object] = ()
        """Requests."""
        self.answered: Callable[[], int] = int
        """How many, so far."""
        self._seen = 0
        self._turn = asyncio.Lock()
        self._asked = self._often = -ASKED_SECONDS
        """When a request was seen last, and when one soon after another."""

    def now(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        if seconds:
            await asyncio.sleep(seconds)
            return
        async with self._turn:  # however many topics learn, predictions wait for a slice of one of them
            await asyncio.sleep(0)
            if (answered := self.answered()) != self._seen:  # perhaps in a single turn, none of which is under way
                before, self._seen, self._asked = self._asked, answered, self.now()
                if self._asked - before < ASKED_SECONDS:
                    self._often = self._asked
            for _ in range(TURNS):
                if not self.under_way:
                    break
                await asyncio.sleep(0)
            else:
                self._often = self.now()  # one that takes long
            for _ in range(ALONE if self.asked() else 0):
                await asyncio.sleep(0)

    def asked(self) -> bool:
        """Whether requests come one upon the other."""
        return self.now() - self._often < ASKED_SECONDS

    def slice_seconds(self) -> float:
        """How long a slice of learning may take now."""
        return SHORT if self.asked() else LONG
