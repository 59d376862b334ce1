"""Sends dead letters to their topic in order, and retries each until the broker acknowledges it."""

import asyncio
import contextlib
from functools import partial

from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from service.errors import DependencyError
from service.streaming.dead_letters import truncate
from service.streaming.kafka.cluster import MAX_MESSAGE_BYTES, KafkaClients
from service.streaming.kafka.connection import kafka_failure
from service.streaming.records import Message

BATCH_MESSAGES = 500
"""The most messages that are sent at the same time."""
BATCH_BYTES = 16_384
"""The client joins messages to batches of up to this size; a larger message is a batch of its own."""
USUAL_LIMIT_BYTES = 1_048_588
"""Kafka's default limit of a batch, assumed until the topic's own limit is known."""
FLUSH_SECONDS, FAILING_FLUSH_SECONDS = 2.0, 0.05
"""How long a flush waits for acknowledgements: usually, and if the last attempt to send failed."""
NO_TIMESTAMP = -1
"""The timestamp of a message without one, in Kafka's protocol."""
RETRY_SECONDS = 1.0
"""The pause after messages were refused."""


class MessageQueue:
    """Dead letters that wait for their acknowledgement. `run` sends them, cut to the limit of their topic."""

    def __init__(self, topic: str, clients: KafkaClients) -> None:
        self._topic, self._clients = topic, clients
        self._messages: list[tuple[Message, int]] = []  # with their size on the wire
        self._bytes = 0
        self._waiting, self._acknowledged = asyncio.Event(), asyncio.Event()
        self._acknowledged.set()
        self._error = ""
        self._limit = USUAL_LIMIT_BYTES
        """The topic's limit of a batch in bytes. If it is below BATCH_BYTES, messages are sent one by one."""

    def add(self, message: Message) -> None:
        """Take a message."""
        self._messages.append((message, message.wire_size))
        self._acknowledged.clear()
        self._waiting.set()
        self._bytes += message.memory

    @property
    def full(self) -> bool:
        """Whether the messages take so much memory that the caller must wait, or drop, before it adds more."""
        return self._bytes > MAX_MESSAGE_BYTES

    async def flush(self) -> None:
        """Wait until every message is acknowledged; raises DependencyError if that takes long."""
        try:
            async with asyncio.timeout(FAILING_FLUSH_SECONDS if self._error else FLUSH_SECONDS):
                await self._acknowledged.wait()
        except TimeoutError:
            what = f"{len(self._messages)} dead letters cannot be written to {self._topic}, so saves wait"
            why = self._error or "no acknowledgement yet"
            raise DependencyError(f"{self._clients.cluster}: {what}: {why}", "kafka") from None

    async def run(self) -> None:
        """Send messages as they come, for as long as the process runs."""
        while True:
            await self._waiting.wait()
            part = self._messages[: BATCH_MESSAGES if self._limit >= BATCH_BYTES else 1]
            if any(size > self._limit for _, size in part):
                await self._read_limit()
            answers = await asyncio.gather(*(self._send(*each) for each in part), return_exceptions=True)
            # Only refused messages are sent again: one that is always refused must not make the batch repeat.
            refused, self._error = list[tuple[Message, int]](), ""
            for each, answer in zip(part, answers, strict=True):
                if isinstance(answer, KafkaError | OSError):
                    refused.append(each)
                    self._error = kafka_failure(answer, "Write")
                elif isinstance(answer, BaseException):
                    raise answer
            self._messages[: len(part)] = refused
            self._bytes += sum(message.memory for message, _ in refused) - sum(message.memory for message, _ in part)
            if refused:
                if any(isinstance(answer, MessageSizeTooLargeError | RecordListTooLargeError) for answer in answers):
                    await self._read_limit()
                await asyncio.sleep(RETRY_SECONDS)
            if not self._messages:
                self._waiting.clear()
                self._acknowledged.set()

    async def _send(self, message: Message, size: int) -> None:
        key, value, headers, timestamp = message if size <= self._limit else truncate(message, self._limit)
        send = partial(self._clients.producer.send_and_wait, self._topic, value=value, key=key, headers=headers)
        try:
            await send(timestamp_ms=timestamp)
        except InvalidTimestampError:
            await send(timestamp_ms=NO_TIMESTAMP)

    async def _read_limit(self) -> None:
        """Ask the broker for the topic's limit. Without the right to ask, the limit stays as it is."""
        with contextlib.suppress(DependencyError):
            self._limit = min(MAX_MESSAGE_BYTES, await self._clients.cluster.largest_batch(self._topic))
