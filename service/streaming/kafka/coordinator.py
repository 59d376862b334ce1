"""Whether a consumer group can be joined, asked over a fresh connection, and why not.

aiokafka waits for ever if no coordinator is found, or if it does not answer, and does not tell.
"""

import asyncio
import time
from typing import NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError, NoError, UnknownMemberIdError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

from service.errors import DependencyError
from service.streaming.kafka.assignor import whole_topics
from service.streaming.kafka.cluster import ANSWER_SECONDS, Cluster, cause_of

PROBE_SECONDS = 3.0
"""For each question of a probe: it is asked where something is wrong already."""
RETRY_SECONDS = 0.2
GROUP_COORDINATOR = 0
"""The kind of coordinator, as FindCoordinator numbers them."""
NO_COORDINATOR = (
    "no coordinator: its topic __consumer_offsets is not there or has no leader, "
    "as if offsets.topic.replication.factor is larger than the number of brokers"
)
NOBODY = "nobody"
"""A member that no group has: what is asked in its name is refused at once, and changes nothing in the group."""


class Coordinator(NamedTuple):
    """The number of the broker that coordinates a group, and what the group does, in Kafka's words: Stable…"""

    broker: int
    state: str


async def coordinator(cluster: Cluster, group: str, session_timeout: float) -> Coordinator:
    """Find a group's coordinator, and ask of it what a member asks; raises DependencyError with the likely cause."""
    where, deadline = f"{cluster}: group {group} cannot be joined", time.monotonic() + ANSWER_SECONDS
    async with cluster.connected() as client:
        while True:
            try:
                return await _ask(client, group, int(session_timeout * 1000))
            except TimeoutError as error:
                raise DependencyError(f"{where}: {error}", "kafka") from error
            except KafkaError as error:
                # The first group of a fresh broker waits a moment for its topic.
                if not error.retriable or time.monotonic() > deadline:
                    absent = isinstance(error, GroupCoordinatorNotAvailableError)
                    cause = NO_COORDINATOR if absent else cause_of(error)
                    raise DependencyError(f"{where}: {cause}", "kafka") from error
            await asyncio.sleep(RETRY_SECONDS)


async def _ask(client: AIOKafkaClient, group: str, session: int) -> Coordinator:
    """Raises TimeoutError with what gets no answer, and KafkaError."""
    asked = "FindCoordinator"
    protocols = [(whole_topics().name, b"")]
    requests = {
        "JoinGroup": JoinGroupRequest(group, session, session, NOBODY, None, ConsumerProtocol.PROTOCOL_TYPE, protocols),
        "SyncGroup": SyncGroupRequest(group, 1, NOBODY, None, []),
    }
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            broker = await client.coordinator_lookup(GROUP_COORDINATOR, group)
            for name, request in requests.items():
                asked = f"{name}, sent to its coordinator, broker {broker},"
                error = for_code((await client.send(broker, request)).error_code)
                if error not in (NoError, UnknownMemberIdError):
                    raise error(name)
            asked = f"DescribeGroups, sent to its coordinator, broker {broker},"
            (_, _, state, *_), *_ = (await client.send(broker, DescribeGroupsRequest([group]))).groups
    except TimeoutError as error:
        raise TimeoutError(f"{asked} gets no answer") from error
    return Coordinator(broker, state)
