"""Slices of learning while requests come."""

from service.process.scheduler import LONG, SHORT, SystemClock


class SetClock(SystemClock):
    """A clock that the test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


async def slice_seconds(interval: float) -> float:
    """How long a slice may take after some requests, one each `interval` seconds."""
    clock = SetClock()
    clock.answered = lambda: int(clock.seconds / interval)
    for _ in range(100):
        clock.seconds += interval
        await clock.sleep(0)
    return clock.slice_seconds()


async def test_slices_are_short_while_many_requests_come() -> None:
    assert await slice_seconds(0.001) == SHORT


async def test_a_client_that_polls_does_not_shorten_slices() -> None:
    assert await slice_seconds(0.1) == LONG
