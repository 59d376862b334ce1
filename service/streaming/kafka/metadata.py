"""Kafka's Metadata request in version 10, which aiokafka does not have: it tells topic ids and a user's rights.

Kafka gives a topic an id when it is created. A client that asks by name cannot notice that a topic was deleted and
created again, if the new topic has the client's offset: only the id differs.
"""

from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

KEY, VERSION = 3, 10
UNSUPPORTED = IncompatibleBrokerVersion, NotImplementedError
"""The errors of aiokafka if a broker does not have this version."""


def _compact(**fields: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a structure in the compact encoding, which ends with tags."""
    return (*fields.items(), ("tags", TaggedFields))


NUMBERS = CompactArray(Int32)
TEXT = CompactString()
BROKER = _compact(id=Int32, host=TEXT, port=Int32, rack=TEXT)
PARTITION = _compact(error=Int16, id=Int32, leader=Int32, epoch=Int32, replicas=NUMBERS, isr=NUMBERS, offline=NUMBERS)
PARTITIONS = CompactArray(*PARTITION)
TOPIC = _compact(error=Int16, name=TEXT, high=Int64, low=Int64, internal=Boolean, partitions=PARTITIONS, rights=Int32)
BROKERS, TOPICS = CompactArray(*BROKER), CompactArray(*TOPIC)
RESPONSE = _compact(throttle_ms=Int32, brokers=BROKERS, cluster_id=TEXT, controller=Int32, topics=TOPICS, rights=Int32)
REQUESTED = CompactArray(*_compact(high=Int64, low=Int64, name=TEXT))
REQUEST = _compact(topics=REQUESTED, create_topics=Boolean, with_cluster_rights=Boolean, with_topic_rights=Boolean)


class MetadataResponse(Response):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    SCHEMA = Schema(*RESPONSE)


class MetadataRequestStruct(RequestStruct):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(*REQUEST)


class MetadataRequest(Request[MetadataRequestStruct]):
    """Asks for one topic by name, without creating it; with `rights` also what this user may do with it."""

    API_KEY = KEY

    def __init__(self, topic: str, rights: bool = False) -> None:
        self._topic, self._rights = topic, rights

    def build(self, request_struct_class: type[MetadataRequestStruct]) -> MetadataRequestStruct:
        """The request's fields."""
        return request_struct_class([(0, 0, self._topic, {})], False, False, self._rights, {})
