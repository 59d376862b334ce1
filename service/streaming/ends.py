"""Where partitions end, asked for all topics at a time: a request for each is most of what an idle process costs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

TOGETHER_SECONDS = 1.0
"""So long those asked for together may take; one topic that was deleted would make all the others wait for it."""

Offsets = dict[TopicPartition, int]


class Ends:
    """Whoever asks in one turn of the event loop is answered by one request, and alone where that fails."""

    def __init__(self, ask: Callable[[Sequence[TopicPartition]], Awaitable[Offsets]]) -> None:
        self._ask = ask
        self._wanted: list[TopicPartition] = []
        self._together: asyncio.Task[Offsets] | None = None

    async def of(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """The offset after the last record of each; raises what the client raises."""
        if not partitions:
            return {}
        if self._together is None:
            self._together = asyncio.create_task(self._ask_together())
        self._wanted += partitions
        try:
            found = await asyncio.shield(self._together)
        except (KafkaError, TimeoutError):
            found = await self._ask(partitions)
        return {tp: found[tp] for tp in partitions}

    async def _ask_together(self) -> Offsets:
        wanted, self._wanted, self._together = self._wanted, [], None
        async with asyncio.timeout(TOGETHER_SECONDS):
            return await self._ask(wanted)
