"""The real clock, and the event loop's turns: how learning and predictions share it.

A request that is under way is answered before more is learned, and while requests come slices of learning are short.
Nobody waits longer than the slice that is running, and where nobody asks slices are as long as it costs least.
"""

import asyncio
import time
from collections.abc import Callable, Collection

from service.streaming.learn import AIM_SECONDS

TURNS = 8
"""An answer takes three; one whose body is slow to arrive is not waited for."""
ASKED_SECONDS = 0.02
"""After a request slices are short for so long."""
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
        self._asked = -ASKED_SECONDS
        """When a request was seen last."""

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
            for _ in range(TURNS):
                if not self.under_way:
                    break
                await asyncio.sleep(0)
            if self.under_way or self.answered() != self._seen:
                self._seen, self._asked = self.answered(), self.now()

    def asked(self) -> bool:
        """Whether requests come."""
        return self.now() - self._asked < ASKED_SECONDS

    def slice_seconds(self) -> float:
        """How long a slice of learning may take now."""
        return SHORT if self.asked() else LONG
