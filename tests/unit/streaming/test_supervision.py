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
