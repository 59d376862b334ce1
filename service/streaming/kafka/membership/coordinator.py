"""Finds out over a fresh connection why a consumer group cannot be joined.

aiokafka waits forever and says nothing if it finds no coordinator, or if the coordinator does not answer.
"""

import asyncio
import time

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import KafkaError, NoError, UnknownMemberIdError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import JoinGroupRequest

from service.errors import DependencyError
from service.streaming.kafka.cluster import ANSWER_SECONDS, Cluster
from service.streaming.kafka.failures import kafka_failure
from service.streaming.kafka.membership.assignor import whole_topics

PROBE_SECONDS = 3.0
"""The limit of one attempt: it is made when something is wrong already."""
RETRY_SECONDS = 0.2
PROBE_MEMBER = "nobody"
"""A member that no group has: the coordinator refuses its request at once, and the group does not change."""


async def find_coordinator(cluster: Cluster, group: str, session_timeout: float) -> tuple[int, str]:
    """Find a group's coordinator and ask to join; raises DependencyError with the likely cause.

    Returns the number of the coordinator's broker, and Kafka's name of the group's state, such as Stable.
    """
    session, deadline = int(session_timeout * 1000), time.monotonic() + ANSWER_SECONDS
    protocols = [(whole_topics().name, b"")]
    join = JoinGroupRequest(group, session, session, PROBE_MEMBER, None, ConsumerProtocol.PROTOCOL_TYPE, protocols)
    async with cluster.connected() as client:
        while True:
            where = f"{cluster}: group {group} cannot be joined"
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    broker = await client.coordinator_lookup(CoordinationType.GROUP, group)
                    where = f"{where} at broker {broker}"
                    error = for_code((await client.send(broker, join)).error_code)
                    if error not in (NoError, UnknownMemberIdError):
                        raise error(group)
                    (_, _, state, *_), *_ = (await client.send(broker, DescribeGroupsRequest([group]))).groups
                return broker, state
            except (KafkaError, TimeoutError) as error:
                # The first group of a new broker waits a moment for the topic __consumer_offsets.
                if isinstance(error, TimeoutError) or not error.retriable or time.monotonic() > deadline:
                    raise DependencyError(f"{where}: {kafka_failure(error)}", "kafka") from error
            await asyncio.sleep(RETRY_SECONDS)
