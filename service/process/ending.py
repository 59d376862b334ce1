"""The end of tasks that may take their cancellation for another's.

A Kafka client that is just closing does, and until Python 3.12 so does `asyncio.wait_for` where its answer has just
come. A task group, once cancelled, hands no second cancellation on.
"""

import asyncio
from collections.abc import Collection
from typing import Any

Tasks = Collection["asyncio.Task[Any]"]


async def end(tasks: Tasks, spared: Tasks, seconds: float) -> None:
    """Cancel these tasks and wait until they have ended.

    Those that run on after so many seconds are cancelled again, with all that they may wait for: whatever runs in
    this loop but the caller and the `spared`.
    """
    ending = set(tasks)
    while tasks := [task for task in tasks if not task.done()]:
        for task in ending:
            task.cancel()
        await asyncio.wait(tasks, timeout=seconds)
        ending = asyncio.all_tasks() - {asyncio.current_task(), *spared}
