"""Kafka's request Metadata in a version that the client library does not speak: topics' ids, users' rights."""

from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

KEY, VERSION = 3, 10


def _compact(**fields: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a structure in the compact encoding, which end with tags."""
    return (*fields.items(), ("tags", TaggedFields))


NUMBERS = CompactArray(Int32)
BROKER_FIELDS = _compact(node_id=Int32, host=CompactString(), port=Int32, rack=CompactString())
PARTITION_FIELDS = _compact(
    error_code=Int16,
    partition=Int32,
    leader=Int32,
    leader_epoch=Int32,
    replicas=NUMBERS,
    isr=NUMBERS,
    offline_replicas=NUMBERS,
)
TOPIC_FIELDS = _compact(
    error_code=Int16,
    name=CompactString(),
    high=Int64,
    low=Int64,
    is_internal=Boolean,
    partitions=CompactArray(*PARTITION_FIELDS),
    authorized_operations=Int32,
)


class MetadataResponse(Response):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    SCHEMA = Schema(
        *_compact(
            throttle_time_ms=Int32,
            brokers=CompactArray(*BROKER_FIELDS),
            cluster_id=CompactString(),
            controller_id=Int32,
            topics=CompactArray(*TOPIC_FIELDS),
            authorized_operations=Int32,
        )
    )


class MetadataRequestStruct(RequestStruct):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(
        *_compact(
            topics=CompactArray(*_compact(high=Int64, low=Int64, name=CompactString())),
            allow_auto_topic_creation=Boolean,
            include_cluster_authorized_operations=Boolean,
            include_topic_authorized_operations=Boolean,
        )
    )


class MetadataRequest(Request[MetadataRequestStruct]):
    """Asks for one topic by its name, which no broker creates for it; with `rights` what this user may do with it."""

    API_KEY = KEY

    def __init__(self, topic: str, rights: bool = False) -> None:
        self._topic, self._rights = topic, rights

    def build(self, request_struct_class: type[MetadataRequestStruct]) -> MetadataRequestStruct:
        """The request's members."""
        return request_struct_class([(0, 0, self._topic, {})], False, False, self._rights, {})

    def prepare(self, versions: dict[int, tuple[int, int]]) -> MetadataRequestStruct:
        """The request for a broker of these versions; raises IncompatibleBrokerVersion where it has no ids."""
        least, most = versions.get(KEY, (0, 0))
        if not least <= VERSION <= most:
            raise IncompatibleBrokerVersion("no topic ids")
        return self.build(MetadataRequestStruct)
