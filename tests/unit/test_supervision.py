"""Long-running tasks: cancellation ends each of them, and an unexpected cancellation is an error."""

import asyncio
import contextlib

import pytest

from service.errors import Stuck
from service.streaming import supervision
from service.streaming.supervision import SupervisedTasks


async def _closing(said: "asyncio.Queue[str]") -> None:
    """Swallows the first cancellation, as a Kafka client does that waits for a task which it has cancelled."""
    said.put_nowait("closing")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    said.put_nowait("going on")
    await asyncio.Event().wait()


async def _group(said: "asyncio.Queue[str]") -> None:
    async with SupervisedTasks() as tasks:
        tasks.create_task(_closing(said))


async def test_a_task_deep_in_groups_that_takes_its_cancellation_for_another_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "AGAIN_SECONDS", 0.01)
    said = asyncio.Queue[str]()
    async with asyncio.timeout(20), SupervisedTasks() as tasks:
        work = tasks.create_task(_group(said))
        assert await said.get() == "closing"
        work.cancel()
    assert said.get_nowait() == "going on"
    assert work.cancelled()


async def _leaks() -> None:
    """Awaits a task that it has cancelled, as a Kafka client may."""
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    await gone


async def test_a_task_that_anothers_cancellation_ends_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with SupervisedTasks() as tasks:
            tasks.create_task(_leaks())
    (stuck,) = caught.value.exceptions
    assert isinstance(stuck, Stuck)
    assert "_leaks" in str(stuck)
