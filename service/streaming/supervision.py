"""Tasks that last as long as the process does: none ends unseen, and each ends when it is told to.

A client library cancels tasks of its own, and may raise that in whoever awaits them. A task group takes a task that is
cancelled for one that is done, so that learning, or a look at Kafka, would end unseen.

And a task may take its own cancellation for that of the client that it is closing, or lose it: until Python 3.12
`asyncio.wait_for` does where its answer has just come. A task group cancels once, and would wait for it for ever.
"""

import asyncio
from types import CoroutineType
from typing import Any, TypeVar

from service.errors import Stuck

AGAIN_SECONDS = 2.0
"""After so long a task that goes on is cancelled again: it had the time to let go of what it holds."""

T = TypeVar("T")


class SupervisedTasks(asyncio.TaskGroup):
    """One that ends as cancelled though nobody cancelled it fails with Stuck; one that goes on is cancelled again."""

    def create_task(self, coro: Any, **options: Any) -> Any:
        """As a group's."""
        task = super().create_task(_insist(coro), **options)
        task.add_done_callback(lambda _: coro.close())  # a task cancelled before it begins never awaits it
        return task


async def _insist(work: "CoroutineType[Any, Any, T]") -> T:
    """Waits, and does nothing else, so that no cancellation is lost here."""
    task, told = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.wait([task], timeout=AGAIN_SECONDS if told else None)
        except asyncio.CancelledError:
            told = True
        if told:
            task.cancel()
    try:
        return task.result()
    except asyncio.CancelledError as error:
        if told:
            raise
        raise Stuck(
            f"{work.__qualname__} was ended by another's cancellation: the process ends, so that a fresh one goes on"
        ) from error
