"""Tasks that last as long as the process does.

A client library cancels tasks of its own, and may raise that in whoever awaits them. A task group takes a task that is
cancelled for one that is done, so that learning, or a look at Kafka, would end unseen.
"""

import asyncio
from types import CoroutineType
from typing import Any, TypeVar

from service.errors import Stuck

T = TypeVar("T")


class Lasting(asyncio.TaskGroup):
    """A task of it that ends as cancelled, though nobody cancelled it, fails with Stuck."""

    def create_task(self, coro: Any, **options: Any) -> Any:
        """As a group's."""
        return super().create_task(_unless_leaked(coro), **options)


async def _unless_leaked(work: "CoroutineType[Any, Any, T]") -> T:
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Stuck(
            f"{work.__qualname__} was ended by another's cancellation: the process ends, so that a fresh one goes on"
        ) from error
