"""Tasks end, also where one of them takes its cancellation for another's; and none ends by another's unseen."""

import asyncio
import contextlib

import pytest

from service.errors import Stuck
from service.process.ending import end
from service.streaming.lasting import Lasting


async def _closing(said: "asyncio.Queue[str]") -> None:
    """As a Kafka client that closes: it waits for a task that it has cancelled, and goes on when it is cancelled."""
    said.put_nowait("closing")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    said.put_nowait("going on")
    await asyncio.Event().wait()


async def _groups(said: "asyncio.Queue[str]") -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(_group(said))


async def _group(said: "asyncio.Queue[str]") -> None:
    async with asyncio.TaskGroup() as inner:
        inner.create_task(_closing(said))


async def _end() -> None:
    said = asyncio.Queue[str]()
    spared, work = asyncio.create_task(asyncio.Event().wait()), asyncio.create_task(_groups(said))
    assert await said.get() == "closing"
    async with asyncio.timeout(20):
        await end([work], [spared], 0.01)
    assert said.get_nowait() == "going on"
    assert work.cancelled()
    assert not spared.done()
    spared.cancel()


def test_a_task_deep_in_groups_that_takes_its_cancellation_for_another_ends() -> None:
    asyncio.run(_end())


async def _leaks() -> None:
    """As a client that awaits a task that it has cancelled."""
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    await gone


async def test_a_task_that_anothers_cancellation_ends_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Lasting() as tasks:
            tasks.create_task(_leaks())
    (stuck,) = caught.value.exceptions
    assert isinstance(stuck, Stuck)
    assert str(stuck).startswith("_leaks was ended by another's cancellation")


async def test_a_task_that_is_cancelled_ends() -> None:
    async with Lasting() as tasks:
        task = tasks.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
