"""Kafka looked at once a second, whether or not records come: figures that a poll kept would freeze with it.

- Where each topic ends that is held here, and whether the group has a coordinator. A standby, which holds no topic,
  asks whether Kafka answers at all.
- Whether this process is in its group, and if not for a while, why not.
- The watchdog: a log goes on, nothing has come of it for long, and a fresh connection is answered.

What is missing is said once, and is in the metrics since when.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import DependencyError, Stuck
from service.streaming.kafka.fetching.fetcher import MIN_PARTITION_BYTES, unreadable
from service.streaming.kafka.log_queries import LATEST, fetch_once, list_offsets
from service.streaming.kafka.membership.coordinator import coordinator_failure
from service.streaming.kafka.membership.group_clients import GroupClients

if TYPE_CHECKING:
    from service.streaming.kafka.topic import TopicLog

LOOK_SECONDS = 1.0
"""Between two looks, and so the age of the lag that is shown."""
OUTSIDE_SECONDS = 2.0
"""So long a process may be outside its group, to join or to find the coordinator, before it is asked why."""


class Health:
    """What Kafka owes to this process."""

    def __init__(self, clients: GroupClients, group: str, say: Callable[..., None], session_timeout: float) -> None:
        self.missing_since = 0.0
        """Since when Kafka, or the group's coordinator, does not answer (seconds since 1970); 0 while both do."""
        self.joined = False
        """The group has told us what is ours, be it nothing, and has not taken it back."""
        self._clients, self._group, self._say, self._session_timeout = clients, group, say, session_timeout
        self._say_once = cache(say)
        """Says the same only once until all is well."""
        self._silent_since: float | None = None
        """Since when the process's own questions fail."""

    async def run(self, logs: Mapping[str, "TopicLog"]) -> None:
        """Look for as long as the process runs; raises Stuck."""
        outside = time.monotonic()
        while True:
            partitions = [tp for log in logs.values() for tp in log.assigned]
            ends, missing = await self._ends(self._clients.query_client, partitions)
            for log in logs.values():
                log.ends = {tp.partition: ends[tp] for tp in log.assigned if tp in ends}
            if missing:
                self._say_once(str(missing))
            inside = self.joined and await self._has_coordinator()
            if inside and not missing:
                self._say_once.cache_clear()
            if inside or missing or not self._clients.consumer.subscription():
                outside = time.monotonic()
            elif (seconds := time.monotonic() - outside) > OUTSIDE_SECONDS:
                missing = await self._why_outside(seconds)
            if missing:
                self.missing_since = self.missing_since or time.time()
                await self._watch_silence(partitions)
            elif self.missing_since:
                self._say("Kafka answers again", seconds=round(time.time() - self.missing_since, 1))
                self.missing_since = 0.0
                self._say_once.cache_clear()
            for tp in partitions:
                await self._watch_partition(tp, logs[tp.topic].ends.get(tp.partition, 0))
            await asyncio.sleep(LOOK_SECONDS)

    async def _ends(
        self, client: AIOKafkaClient, partitions: Sequence[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], DependencyError | None]:
        """Where logs end; the error if none of them tells, or nothing is held and Kafka does not answer."""
        try:
            async with self._clients.cluster.errors():
                if not partitions:
                    await client.send(client.get_random_node(), MetadataRequest([]))
                ends, errors = await list_offsets(client, partitions, LATEST)
                if errors and not ends:  # one topic that was deleted says nothing of the others
                    raise next(iter(errors.values()))
                return ends, None
        except DependencyError as error:
            return {}, error

    async def _has_coordinator(self) -> bool:
        try:
            await self._clients.query_client.coordinator_lookup(CoordinationType.GROUP, self._group)
        except (KafkaError, OSError):
            return False
        return True

    async def _why_outside(self, seconds: float) -> DependencyError | None:
        """Why we are not in the group; None if its coordinator answers, so that we are to wait."""
        try:
            broker, state = await coordinator_failure(self._clients.cluster, self._group, self._session_timeout)
        except DependencyError as error:
            self._say_once(str(error))
            return error
        if seconds > 1.5 * self._session_timeout:  # a member that was killed is waited for so long
            self._say_once(
                f"group {self._group} has not let this process in yet, though its coordinator, broker {broker}, "
                f"answers: it is {state}, in Kafka's words, so another member is slow to join again"
            )
        return None

    async def _watch_silence(self, partitions: Sequence[TopicPartition]) -> None:
        """Raises Stuck if our questions have failed for long, and a fresh client was answered all that time."""
        try:
            async with self._clients.cluster.connected() as client:
                if partitions:
                    await client.set_topics({tp.topic for tp in partitions})
                _, missing = await self._ends(client, partitions)
        except DependencyError as error:
            missing = error
        now = time.monotonic()
        self._silent_since = None if missing else self._silent_since or now
        if self._silent_since is not None and now - self._silent_since > self._clients.watchdog:
            raise Stuck(
                f"{self._clients.cluster} answers a fresh connection, but not the client's own for "
                f"{now - self._silent_since:.0f} s (kafka.watchdog): the process ends, so that a fresh one goes on"
            )

    async def _watch_partition(self, tp: TopicPartition, end: int) -> None:
        """Raises Stuck if a fetch has been due something for long, and a fresh client is given it.

        If that one is given nothing either, the log is damaged: the topic stops, alone.
        """
        fetcher, watchdog = self._clients.fetcher, self._clients.watchdog
        seconds = fetcher.starving_seconds(tp, end)
        if seconds <= watchdog:
            return
        offset = fetcher.fetch_offset(tp)
        try:
            async with self._clients.cluster.connected() as client:
                await client.set_topics([tp.topic])
                response = await fetch_once(client, tp, offset, MIN_PARTITION_BYTES)
        except DependencyError:
            return
        if response.data:
            raise Stuck(
                f"topic {tp.topic}: {self._clients.cluster} answers and has more records, but none came for "
                f"{seconds:.0f} s (kafka.watchdog): the process ends, so that a fresh one goes on"
            )
        if response.error == 0 and (stable := response.last_stable_offset) > offset:
            reason = f"the broker gives nothing from there on, though its log goes on to {stable}"
            fetcher.fail(tp, unreadable(tp, offset, reason))
