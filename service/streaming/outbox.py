"""Dead letters of one topic on their way: each is kept, and written repeatedly, until the broker acknowledges it."""

import asyncio
import contextlib

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from service.errors import DependencyError
from service.streaming.dead_letters import DeadLetter, truncate, wire_size
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.failures import kafka_failure

BATCH_LETTERS = 500
"""The most letters that are sent at the same time."""
BATCH_BYTES = 16_384
"""The client joins letters to batches of up to this size; a larger letter is a batch of its own."""
USUAL_LIMIT_BYTES = 1_048_588
"""Kafka's default limit of a batch, assumed until the topic's own limit is known."""
MAX_LETTER_BYTES = 64 << 20
"""The largest letter. Learning waits while all unwritten letters together take more memory than this."""
FLUSH_SECONDS, FAILING_FLUSH_SECONDS = 2.0, 0.05
"""How long a save waits for acknowledgements: usually, and if the last write failed."""
RETRY_SECONDS = 1.0
"""The pause after letters were refused."""


class Outbox:
    """Letters on their way to one dead-letter topic, in order, each cut to what the topic takes."""

    def __init__(self, topic: str, cluster: Cluster) -> None:
        self._topic, self._cluster = topic, cluster
        self._letters: list[tuple[DeadLetter, int]] = []  # with their size on the wire
        self._bytes = 0
        self._waiting, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()
        self._error = ""
        self._limit = USUAL_LIMIT_BYTES
        """The topic's limit of a batch in bytes. If it is below BATCH_BYTES, letters are sent one by one."""

    def add(self, letter: DeadLetter) -> None:
        """Take a letter."""
        self._letters.append((letter, wire_size(letter)))
        self._written.clear()
        self._waiting.set()
        self._bytes += _memory(self._letters[-1])

    @property
    def full(self) -> bool:
        """Whether the unwritten letters take so much memory that learning must wait."""
        return self._bytes > MAX_LETTER_BYTES

    async def flush(self) -> None:
        """Wait until every letter is acknowledged; raises DependencyError if that takes long."""
        try:
            async with asyncio.timeout(FAILING_FLUSH_SECONDS if self._error else FLUSH_SECONDS):
                await self._written.wait()
        except TimeoutError:
            raise DependencyError(
                f"{self._cluster}: {len(self._letters)} dead letters cannot be written to "
                f"{self._topic}, so saves wait: {self._error or 'no acknowledgement yet'}",
                "kafka",
            ) from None

    async def write(self, producer: AIOKafkaProducer) -> None:
        """Write letters as they come, for as long as the process runs."""
        while True:
            await self._waiting.wait()
            part = self._letters[: BATCH_LETTERS if self._limit >= BATCH_BYTES else 1]
            if any(size > self._limit for _, size in part):
                await self._read_limit()
            answers = await asyncio.gather(*(self._send(producer, *each) for each in part), return_exceptions=True)
            # Only refused letters are sent again: a letter that is always refused must not make the batch repeat.
            refused, self._error = list[tuple[DeadLetter, int]](), ""
            for each, answer in zip(part, answers, strict=True):
                if isinstance(answer, KafkaError | OSError):
                    refused.append(each)
                    self._error = kafka_failure(answer, "Write")
                elif isinstance(answer, BaseException):
                    raise answer
            self._letters[: len(part)] = refused
            self._bytes += sum(map(_memory, refused)) - sum(map(_memory, part))
            if refused:
                if any(isinstance(answer, MessageSizeTooLargeError | RecordListTooLargeError) for answer in answers):
                    await self._read_limit()
                await asyncio.sleep(RETRY_SECONDS)
            if not self._letters:
                self._waiting.clear()
                self._written.set()

    async def _send(self, producer: AIOKafkaProducer, letter: DeadLetter, size: int) -> None:
        fits = letter if size <= self._limit else truncate(letter, self._limit)
        await producer.send_and_wait(self._topic, value=fits.value, key=fits.key, headers=fits.headers)

    async def _read_limit(self) -> None:
        """Ask the broker for the topic's limit. Without the right to ask, the limit stays as it is."""
        with contextlib.suppress(DependencyError):
            self._limit = min(MAX_LETTER_BYTES, await self._cluster.largest_batch(self._topic))


def _memory(letter: tuple[DeadLetter, int]) -> int:
    """About how many bytes of memory a letter takes."""
    return 1000 + letter[1] + 72 * len(letter[0].headers)
