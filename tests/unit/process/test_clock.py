"""Slices of learning while requests come."""

import pytest
from uvicorn.server import ServerState

from service.process.scheduler import LONG_SLICE_SECONDS, SHORT_SLICE_SECONDS, SystemClock


class SetClock(SystemClock):
    """A clock that the test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


async def slice_seconds(interval: float) -> float:
    """How long a slice may take after some requests, one each `interval` seconds."""
    requests = ServerState()
    clock = SetClock(requests)
    for _ in range(100):
        clock.seconds += interval
        requests.total_requests = int(clock.seconds / interval)
        await clock.sleep(0)
    return clock.slice_seconds()


@pytest.mark.parametrize(
    ("interval", "seconds"), [(0.001, SHORT_SLICE_SECONDS), (0.1, LONG_SLICE_SECONDS)], ids=["many", "one that polls"]
)
async def test_slices_are_short_while_many_requests_come(interval: float, seconds: float) -> None:
    assert await slice_seconds(interval) == seconds
