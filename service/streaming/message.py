"""A message to send to a Kafka topic."""

from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder


class Message(NamedTuple):
    """One message, with the headers in order."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def wire_size(self) -> int:
        """The most bytes of a batch that has only this message: the client and the broker limit this number."""
        return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(self.key, self.value, self.headers))
