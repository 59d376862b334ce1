"""A task group for tasks that last as long as the process: an unexpected cancellation is an error.

A client library cancels tasks of its own, and may raise that cancellation in a task of ours that awaits them. A plain
task group takes a cancelled task for a finished one, so learning would end unnoticed.

A task may also lose its own cancellation, or take it for that of a client that it is closing: until Python 3.12
`asyncio.wait_for` loses it if its result has just arrived. A plain task group cancels once, and would wait forever.
"""

import asyncio
from typing import Any

from service.errors import Stuck

CANCEL_AGAIN_SECONDS = 2.0
"""The pause before a task that ignored its cancellation is cancelled again: it needs time to release what it holds."""


class SupervisedTasks(asyncio.TaskGroup):
    """A task that other code cancels fails with Stuck. A task that ignores our cancellation is cancelled again."""

    def create_task(self, coro: Any, **options: Any) -> Any:
        """Start a task; raises CancelledError if the group is ending, as it is about to cancel the caller too."""
        insisting = _insist(coro)
        try:
            task = super().create_task(insisting, **options)
        except RuntimeError:
            insisting.close()
            coro.close()
            raise asyncio.CancelledError from None
        task.add_done_callback(lambda _: coro.close())  # a task that is cancelled before it begins never awaits it
        return task


async def _insist(work: Any) -> Any:
    """Wait for the work, and do nothing else, so that no cancellation is lost here."""
    task, cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.wait([task], timeout=CANCEL_AGAIN_SECONDS if cancelled else None)
        except asyncio.CancelledError:
            cancelled = True
        if cancelled:
            task.cancel()
    try:
        return task.result()
    except asyncio.CancelledError as error:
        if cancelled:
            raise
        raise Stuck(f"{work.__qualname__} was cancelled from outside: a fresh process continues") from error
