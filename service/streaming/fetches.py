"""How the topics of one consumer share its fetches.

- Each partition is asked for its share of a fetch. The client asks each for the same, whatever their number: a few that
  have much then fill a fetch, and which they are is chance, so that the last of a hundred waits for seconds.
- What a fetch brings is taken down some topics a turn of the event loop: the client does it in one.
- A fetch wakes the polls that it has records for, some turns of the event loop apart. The client wakes all, and each
  looks through what came for the others: with a hundred topics that costs more than their records, and what all of
  them unpack is one turn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher

LEAST_BYTES = 256 << 10
"""Of a partition, however many there are: less brings one batch of many producers at a time."""
AT_ONCE = 20
"""Topics that are taken down in one turn of the event loop, which takes a quarter of a millisecond."""
TURNS = 3
"""Between two polls that are woken: what one unpacks and what another learns are different turns."""


class _Fetch:
    """A request, and what is left of its answer."""

    def __init__(self, request: Any) -> None:
        self.topics, self._request, self.left = request.topics, request, list[Any]()
        self._answer: Any = None

    async def part(self, client: Any, node: int) -> Any:
        """The answer, with the next of its topics alone."""
        if self._answer is None:
            self._answer = await client.send(node, self._request)
            self.left = self._answer.topics or []
        self._answer.topics, self.left = self.left[:AT_ONCE], self.left[AT_ONCE:]
        return self._answer


class _Client:
    """The client's, which answers a `_Fetch` in parts."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, _Fetch):
            return await request.part(self._client, node)
        return await self._client.send(node, request, **options)


class Fetcher(fetcher.Fetcher):
    """The client's, which `internals` has it make."""

    _loop: asyncio.AbstractEventLoop
    _records: dict[TopicPartition, Any]
    _fetch_max_bytes: int
    _max_partition_fetch_bytes: int
    _closed: bool
    _wait_consume_future: asyncio.Future[None] | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._asking: dict[asyncio.Task[Any] | None, Sequence[TopicPartition]] = {}
        self._of: dict[asyncio.Future[None], Sequence[TopicPartition]] = {}
        self._due: deque[asyncio.Future[None]] = deque()
        self._consumed = False
        super().__init__(*arguments, **options)
        self._most = self._max_partition_fetch_bytes
        self._client: Any = _Client(self._client)

    def _get_actions_per_node(self, assignment: Any) -> Any:
        share = self._fetch_max_bytes // max(1, len(assignment.tps))
        self._max_partition_fetch_bytes = min(max(share, LEAST_BYTES), self._most)
        return super()._get_actions_per_node(assignment)

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
        fetch = _Fetch(request)
        brought: bool = await super()._proc_fetch_request(assignment, node_id, fetch)
        with contextlib.suppress(asyncio.CancelledError):  # as theirs: nobody wants it any more
            while fetch.left:
                await asyncio.sleep(0)
                brought |= await super()._proc_fetch_request(assignment, node_id, fetch)
        return brought

    async def fetched_records(
        self, partitions: Sequence[TopicPartition], timeout: float = 0, max_records: int | None = None
    ) -> Any:
        """The records of some of these, once there are any."""
        task = asyncio.current_task()
        self._asking[task] = partitions
        try:
            return await super().fetched_records(partitions, timeout, max_records)
        finally:
            del self._asking[task]

    def _create_fetch_waiter(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = super()._create_fetch_waiter()
        self._of[waiter] = wanted = self._asking[asyncio.current_task()]
        waiter.add_done_callback(self._of.pop)
        if not self._records.keys().isdisjoint(wanted or self._records):
            self._notify(waiter)  # they are here, but this turn had unpacked enough: nothing new need come for the next
        return waiter

    def _notify(self, future: asyncio.Future[None] | None) -> None:
        if self._closed or future is None:
            super()._notify(future)
        elif future is self._wait_consume_future:
            # What is to be asked of each partition is looked through then: not again for each that is read.
            self._consumed = True
            if not self._due:
                self._ask()
        elif not (wanted := self._of[future]) or not self._records.keys().isdisjoint(wanted):
            if not self._due:
                self._loop.call_soon(self._wake)
            self._due.append(future)

    def _wake(self, turns: int = 0) -> None:
        if turns:
            self._loop.call_soon(self._wake, turns - 1)
            return
        super()._notify(self._due.popleft())
        if self._due:
            self._loop.call_soon(self._wake, TURNS - 1)
        elif self._consumed:
            self._loop.call_soon(self._ask)

    def _ask(self) -> None:
        self._consumed = False
        super()._notify(self._wait_consume_future)
