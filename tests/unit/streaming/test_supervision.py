"""Long-running tasks: cancellation ends each of them, and an unexpected cancellation is an error."""

import asyncio

import pytest

from service.errors import Stuck
from service.streaming.supervision import SupervisedTasks


async def _leaks() -> None:
    """Awaits a task that it has cancelled, as a Kafka client may."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_a_task_that_anothers_cancellation_ends_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with SupervisedTasks() as tasks:
            tasks.create_task(_leaks())
    (stuck,) = caught.value.exceptions
    assert isinstance(stuck, Stuck)
    assert "_leaks" in str(stuck)


async def test_a_task_that_starts_others_while_the_group_ends_adds_no_error() -> None:
    """The cancellation of a task reaches it some turns of the event loop after the group has begun to end."""

    async def fails_beside_a_task_that_starts_others() -> None:
        async with SupervisedTasks() as tasks:
            tasks.create_task(starts_others(tasks))
            for _ in range(5):
                await asyncio.sleep(0)
            raise ValueError

    async def starts_others(tasks: SupervisedTasks) -> None:
        while True:
            await asyncio.sleep(0)
            tasks.create_task(asyncio.sleep(0))

    with pytest.raises(ExceptionGroup) as caught:
        await fails_beside_a_task_that_starts_others()
    assert [*map(type, caught.value.exceptions)] == [ValueError]
