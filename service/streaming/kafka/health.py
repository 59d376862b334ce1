"""Checks Kafka once a second, whether or not records arrive: figures that `poll` kept would freeze with it.

- It reads the end offsets of the partitions that this process holds, unless a fetch has just brought them, and looks
  for the group's coordinator. If there is no end to ask for, it checks whether Kafka answers at all.
- It checks whether this process is in its group, and after some time outside looks for the reason.
- The watchdog ends the process if nothing has arrived for a long time although a fresh connection gets an answer.

A failure is logged once, and a metric says since when it lasts.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import InconsistentGroupProtocolError, KafkaError, NoError, UnknownMemberIdError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import JoinGroupRequest
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import DependencyError, Stuck
from service.streaming.kafka import log_queries
from service.streaming.kafka.cluster import ANSWER_SECONDS, Cluster, KafkaClients
from service.streaming.kafka.connection import kafka_failure
from service.streaming.kafka.fetching.fetcher import MIN_PARTITION_BYTES, WAIT_MS, Fetcher, ModelPartition, unreadable
from service.streaming.kafka.membership.assignor import NAME
from service.streaming.kafka.model_log import ModelLog

CHECK_SECONDS = 1.0
"""The pause between two checks, and so the age of the lag that is shown."""
FRESH_SECONDS = WAIT_MS / 1000 + 1.0
"""How long the end of a partition in a fetch response is used: the next response comes sooner."""
OUTSIDE_SECONDS = 2.0
"""How long a process may be outside its group, to join or find the coordinator, before it asks why."""
PROBE_SECONDS = 3.0
"""The limit of one attempt to find a group's coordinator: it is made when something is wrong already."""
RETRY_SECONDS = 0.2
"""The pause after such an attempt."""
PROBE_MEMBER = "nobody"
"""A member that no group has: the coordinator refuses its request at once, and the group does not change."""


@dataclass(eq=False, repr=False)
class Health:
    """Checks that Kafka serves this process."""

    clients: KafkaClients
    fetcher: Fetcher
    group: str
    logger: Any
    session_timeout: float
    watchdog: float
    """The limit in seconds without a record or an answer though the broker has one."""

    def __post_init__(self) -> None:
        self.missing_since = 0.0
        """Since when Kafka or the group's coordinator does not answer (seconds since 1970); 0 while both do."""
        self.subscribed = set[str]()
        """The topics with which this process joins its group."""
        self.joined = False
        """Whether the group has told us which topics are ours, even if none, and has not revoked them."""
        self._warn_once = cache(self.logger.warning)
        """Logs a text only once until all is well."""
        self._inform_once = cache(self.logger.info)
        self._open = set[tuple[TopicPartition, int]]()
        """Where the open transactions begin that were logged."""
        self._silent_since: float | None = None
        """Since when our own requests fail although requests of fresh clients succeed."""

    async def run(self, logs: Mapping[str, ModelLog]) -> None:
        """Check for as long as the process runs; raises Stuck."""
        self._outside_since = time.monotonic()
        while True:
            assigned = [each for log in logs.values() for each in log.assigned.values()]
            partitions = sorted({each.tp for each in assigned})
            fresh_after, missing = time.monotonic() - FRESH_SECONDS, None
            buffers = [buffer for each in assigned if (buffer := self.fetcher.partitions.get(each))]
            ends = {buffer.of.tp: buffer.end for buffer in buffers if buffer.end_at > fresh_after}
            try:
                ends |= await self._ends(self.clients.query_client, [tp for tp in partitions if tp not in ends])
                self._silent_since = None
            except DependencyError as error:
                missing = error
                self._note_missing(error)
                await self._watch_silence(partitions)
            for log in logs.values():
                log.ends = ends
            inside = self.joined and await self._has_coordinator()
            if inside and not missing:
                self._warn_once.cache_clear()
            if inside or missing or not self.subscribed:
                self._outside_since = time.monotonic()
            elif (seconds := time.monotonic() - self._outside_since) > OUTSIDE_SECONDS:
                missing = await self._why_outside(seconds)
            if self.missing_since and not missing:
                self.logger.warning("Kafka answers again", seconds=round(time.time() - self.missing_since, 1))
                self.missing_since = 0.0
            for buffer in buffers:
                if buffer.held_back and (place := (buffer.of.tp, buffer.end)) not in self._open:
                    self._open.add(place)
                    self.logger.warning(log_queries.open_transaction_message(*place, buffer.high_watermark))
            for each in assigned:
                await self._watch_partition(each, ends.get(each.tp, 0))
            await asyncio.sleep(CHECK_SECONDS)

    def _note_missing(self, error: DependencyError) -> None:
        self.missing_since = self.missing_since or time.time()
        self._warn_once(str(error))

    async def _ends(self, client: AIOKafkaClient, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of the partitions that have an answer; raises DependencyError if none has, or Kafka is away."""
        async with self.clients.cluster.errors():
            if not partitions:
                await client.send(client.get_random_node(), MetadataRequest([]))
            ends, errors = await log_queries.list_offsets(client, partitions, log_queries.LATEST)
            if errors and not ends:  # a deleted topic may cause a single error
                raise next(iter(errors.values()))
            return ends

    async def _has_coordinator(self) -> bool:
        with suppress(KafkaError, OSError):
            await self.clients.query_client.coordinator_lookup(CoordinationType.GROUP, self.group)
            return True
        return False

    async def _why_outside(self, seconds: float) -> DependencyError | None:
        """Why we are not in the group; None if the coordinator answers, so that we must wait."""
        try:
            broker, state = await find_coordinator(self.clients.cluster, self.group, self.session_timeout)
        except DependencyError as error:
            if not isinstance(error.__cause__, InconsistentGroupProtocolError):
                self._note_missing(error)
                return error
            self._warn_once(str(error))
            self._outside_since = time.monotonic()  # no other member is slow
            return None
        if seconds > 1.5 * self.session_timeout:  # the group waits as long for a member that was killed
            self._warn_once(
                f"group {self.group} has not let this process in yet, though its coordinator, broker {broker}, "
                f"answers: it is {state}, in Kafka's words, so another member is slow to join again; "
                f"{_cure_of_slow_answers(self.session_timeout)}"
            )
        else:
            self._inform_once("waiting for the group: a member that left is waited for up to kafka.session_timeout")
        return None

    async def _watch_silence(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise Stuck if our questions have failed for a long time, and fresh clients got answers all that time."""
        try:
            async with self.clients.cluster.connected() as client:
                if partitions:
                    await client.set_topics({tp.topic for tp in partitions})
                await self._ends(client, partitions)
        except DependencyError:
            self._silent_since = None
            return
        self._silent_since = self._silent_since or time.monotonic()
        if (seconds := time.monotonic() - self._silent_since) > self.watchdog:
            raise _stuck(f"{self.clients.cluster} answers a fresh connection, but not the client's own for", seconds)

    async def _watch_partition(self, partition: ModelPartition, end: int) -> None:
        """Raise Stuck if fetches have brought nothing for a long time, and a fresh client gets records.

        If that client gets none either, the log is damaged: only this model stops.
        """
        buffer, tp = self.fetcher.partitions.get(partition), partition.tp
        if buffer is None or (seconds := buffer.starving_seconds(end)) <= self.watchdog:
            return
        offset = buffer.sequence.fetch_offset
        try:
            async with self.clients.cluster.connected() as client:
                await client.set_topics([tp.topic])
                await log_queries.refresh_unknown_leaders(client, [tp])
                if (leader := log_queries.leader_of(client, tp)) is None:
                    return
                responses, _ = await log_queries.fetch(client, leader, {tp: offset}, MIN_PARTITION_BYTES)
        except DependencyError:
            return
        for response in responses:  # a broker that throttles us sends none
            if response.data:
                what = f"topic {tp.topic}: {self.clients.cluster} answers and has more records, but none came for"
                raise _stuck(what, seconds)
            if response.error == 0 and (stable := response.last_stable_offset) > offset:
                reason = f"the broker gives nothing from there on, though its log goes on to {stable}"
                buffer.error = unreadable(partition, offset, reason)
                buffer.arrived.set()


def _stuck(what: str, seconds: float) -> Stuck:
    return Stuck(f"{what} {seconds:.0f} s (kafka.watchdog): the process ends, so that a fresh one continues")


def _cure_of_slow_answers(session_timeout: float) -> str:
    return f"if JoinGroup or SyncGroup takes longer than kafka.session_timeout ({session_timeout:g} s), raise that"


async def find_coordinator(cluster: Cluster, group: str, session_timeout: float) -> tuple[int, str]:
    """Find a group's coordinator and ask to join; raises DependencyError with the likely cause.

    aiokafka waits forever and says nothing if it finds no coordinator, or if the coordinator does not answer.

    Returns the number of the coordinator's broker, and Kafka's name of the group's state, such as Stable.
    """
    session, deadline = int(session_timeout * 1000), time.monotonic() + ANSWER_SECONDS
    join = JoinGroupRequest(group, session, session, PROBE_MEMBER, None, ConsumerProtocol.PROTOCOL_TYPE, [(NAME, b"")])
    async with cluster.connected() as client:
        while True:
            where, cure = f"{cluster}: group {group} cannot be joined", ""
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    broker = await client.coordinator_lookup(CoordinationType.GROUP, group)
                    where, cure = f"{where} at broker {broker}", f"; {_cure_of_slow_answers(session_timeout)}"
                    error = for_code((await client.send(broker, join)).error_code)
                    if error not in (NoError, UnknownMemberIdError):
                        raise error(group)
                    (_, _, state, *_), *_ = (await client.send(broker, DescribeGroupsRequest([group]))).groups
                return broker, state
            except (KafkaError, TimeoutError) as error:
                # The first group of a new broker waits a moment for the topic __consumer_offsets.
                if isinstance(error, TimeoutError) or not error.retriable or time.monotonic() > deadline:
                    slow = cure if isinstance(error, TimeoutError) else ""
                    raise DependencyError(f"{where}: {kafka_failure(error)}{slow}", "kafka") from error
            await asyncio.sleep(RETRY_SECONDS)
