"""Dead letters of one topic under way: kept, and written again and again, until the broker has acknowledged each."""

import asyncio
import contextlib

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from service.errors import DependencyError
from service.streaming.dead_letters import DeadLetter
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.failures import kafka_failure
from service.streaming.truncation import truncate, wire_size

BATCH_LETTERS = 500
"""Letters under way at a time: as many as a poll has records."""
BATCH_BYTES = 16_384
"""The client puts letters into batches of so much, and larger ones into one each."""
USUAL_BYTES = 1_048_588
"""Kafka's own limit of a topic, until it is asked for."""
MOST_BYTES = 64 << 20
"""Of one letter; and of letters that cannot be written: beyond it learning waits too."""
TOO_LARGE = MessageSizeTooLargeError, RecordListTooLargeError
FLUSH_SECONDS = 2.0
RETRY_SECONDS = 1.0
"""For a flush before a save, which then comes later; and between two tries of letters that were refused."""


def letter_producer(cluster: Cluster) -> AIOKafkaProducer:
    """What writes dead letters.

    Not idempotent: such a client goes on counting behind a batch that the broker refused, and the broker, which did
    not count that, takes nothing from it any more. A letter that is written twice has the same key.
    """
    return cluster.producer(max_request_size=MOST_BYTES)


class Outbox:
    """Letters on their way to one dead-letter topic, in order, each cut to what the topic takes."""

    def __init__(self, topic: str, cluster: Cluster) -> None:
        self._topic, self._cluster = topic, cluster
        self._letters: list[tuple[DeadLetter, int]] = []  # with their size on the wire
        self._bytes = 0
        self._waiting, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()
        self._error = ""
        self._limit = USUAL_BYTES
        """The topic's limit of a batch in bytes. If it is below BATCH_BYTES, letters are sent one by one."""

    def add(self, letter: DeadLetter) -> None:
        """Take a letter."""
        self._letters.append((letter, wire_size(letter)))
        self._written.clear()
        self._waiting.set()
        self._bytes += _memory(self._letters[-1])

    @property
    def full(self) -> bool:
        """Whether so many are under way that learning is to wait."""
        return self._bytes > MOST_BYTES

    async def flush(self) -> None:
        """Wait until every letter is acknowledged; raises DependencyError when that takes long."""
        try:
            async with asyncio.timeout(0.05 if self._error else FLUSH_SECONDS):
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
                await self._ask()
            answers = await asyncio.gather(*(self._send(producer, *each) for each in part), return_exceptions=True)
            # Only these again: one that is always refused is no reason to write the others as often.
            left, self._error = list[tuple[DeadLetter, int]](), ""
            for each, answer in zip(part, answers, strict=True):
                if isinstance(answer, KafkaError | OSError):
                    left.append(each)
                    self._error = kafka_failure(answer, "Write")
                elif isinstance(answer, BaseException):
                    raise answer
            self._letters[: len(part)] = left
            self._bytes += sum(map(_memory, left)) - sum(map(_memory, part))
            if left:
                if any(isinstance(answer, TOO_LARGE) for answer in answers):
                    await self._ask()
                await asyncio.sleep(RETRY_SECONDS)
            if not self._letters:
                self._waiting.clear()
                self._written.set()

    async def _send(self, producer: AIOKafkaProducer, letter: DeadLetter, size: int) -> None:
        fits = letter if size <= self._limit else truncate(letter, self._limit)
        await producer.send_and_wait(self._topic, value=fits.value, key=fits.key, headers=fits.headers)

    async def _ask(self) -> None:
        """Ask for the topic's limit, where the broker tells it."""
        with contextlib.suppress(DependencyError):
            self._limit = min(MOST_BYTES, await self._cluster.largest_batch(self._topic))


def _memory(letter: tuple[DeadLetter, int]) -> int:
    """About what a letter takes in memory, in bytes."""
    return 1000 + letter[1] + 72 * len(letter[0].headers)
