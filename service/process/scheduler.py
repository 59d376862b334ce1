"""The real clock. Its `sleep(0)` lets requests run between slices of learning.

A request that is under way is answered before more is learned. It waits for at most one slice. Slices are short while
many requests come; else they grow to the size that is cheapest.
"""

import asyncio
import time

from uvicorn.server import ServerState

from service.streaming.learn_loop import AIM_SECONDS

ANSWER_TURNS = 8
"""Turns of the event loop that learning leaves to requests. An answer takes three; a slow body gets no more."""
BUSY_SECONDS = 0.02
"""After two requests within this time, slices are short for the same time. A client that polls ten times a second does
not make them short: short slices cost a tenth more."""
SHORT_SLICE_SECONDS, LONG_SLICE_SECONDS = 0.0002, AIM_SECONDS
"""Seconds of a slice while many requests come, and otherwise. The fixed cost of a slice is a tenth of a long one."""


class SystemClock:
    """The real clock."""

    def __init__(self, requests: ServerState) -> None:
        """`requests` has the tasks of the requests that are being answered, and the number of answered ones."""
        self._requests, self._seen = requests, 0
        self._turn = asyncio.Lock()
        self._requested_at = self._busy_at = -BUSY_SECONDS
        """When the last request was seen, and the last that came within BUSY_SECONDS of another."""

    def now(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep. With 0 seconds, wait until requests under way are answered, for at most ANSWER_TURNS turns."""
        if seconds:
            await asyncio.sleep(seconds)
            return
        async with self._turn:  # however many topics learn, predictions wait for a slice of one of them
            await asyncio.sleep(0)
            for _ in range(ANSWER_TURNS):
                if not self._requests.tasks:
                    break
                await asyncio.sleep(0)
            answered, now = self._requests.total_requests, self.now()
            if self._requests.tasks or answered != self._seen:
                if now - self._requested_at < BUSY_SECONDS:
                    self._busy_at = now
                self._seen, self._requested_at = answered, now

    def is_busy(self) -> bool:
        """Whether many requests come."""
        return self.now() - self._busy_at < BUSY_SECONDS

    def slice_seconds(self) -> float:
        """How long a slice of learning may take now."""
        return SHORT_SLICE_SECONDS if self.is_busy() else LONG_SLICE_SECONDS
