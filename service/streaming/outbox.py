"""Dead letters of one topic under way: kept, and written again and again, until the broker has acknowledged each."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from service.errors import DependencyError
from service.streaming.dead_letters import DeadLetter

BATCH = 500
MOST_BYTES = 64 << 20
"""Of letters that cannot be written; beyond it learning waits too."""
FLUSH_SECONDS = 2.0
RETRY_SECONDS = 1.0


def letter_producer(bootstrap: str) -> AIOKafkaProducer:
    """What writes dead letters.

    Not idempotent: such a client goes on counting behind a batch that the broker refused, and the broker, which did
    not count that, takes nothing from it any more. A letter that is written twice has the same key.
    """
    return AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")


class Outbox:
    """Letters on their way to one dead-letter topic, in order."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        self._topic, self._bootstrap = topic, bootstrap
        self._letters: list[DeadLetter] = []
        self._bytes = 0
        self._waiting, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()
        self._error = ""

    async def put(self, letter: DeadLetter, wanted: Callable[[], bool]) -> None:
        """Take a letter; waits while very many are under way and this is still `wanted`."""
        self._letters.append(letter)
        self._written.clear()
        self._waiting.set()
        self._bytes += _size(letter)
        while self._bytes > MOST_BYTES and wanted():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._written.wait()

    async def flush(self) -> None:
        """Wait until every letter is acknowledged; raises DependencyError when that takes long."""
        try:
            async with asyncio.timeout(0.05 if self._error else FLUSH_SECONDS):
                await self._written.wait()
        except TimeoutError:
            raise DependencyError(
                f"Kafka at {self._bootstrap}: {len(self._letters)} dead letters cannot be written to "
                f"{self._topic}, so saves wait: {self._error or 'no acknowledgement yet'}",
                "kafka",
            ) from None

    async def write(self, producer: AIOKafkaProducer) -> None:
        """Write letters as they come, for as long as the process runs."""
        while True:
            await self._waiting.wait()
            part, sent, error = self._letters[:BATCH], list[Awaitable[object]](), ""
            try:
                for letter in part:
                    sent.append(
                        await producer.send(self._topic, value=letter.value, key=letter.key, headers=letter.headers)
                    )
            except (KafkaError, OSError) as refusal:
                error = str(refusal) or type(refusal).__name__
            left = part[len(sent) :]
            for letter, answer in zip(part, await asyncio.gather(*sent, return_exceptions=True), strict=False):
                if isinstance(answer, KafkaError | OSError):
                    # Only these again: one that is always refused is no reason to write the others as often.
                    left.append(letter)
                    error = str(answer) or type(answer).__name__
                elif isinstance(answer, BaseException):
                    raise answer
            self._letters[: len(part)] = left
            self._bytes += sum(map(_size, left)) - sum(map(_size, part))
            self._error = error
            if left:
                await asyncio.sleep(RETRY_SECONDS)
            if not self._letters:
                self._waiting.clear()
                self._written.set()


def _size(letter: DeadLetter) -> int:
    """About what a letter takes in memory, in bytes."""
    headers = sum(len(name) + len(content or b"") for name, content in letter.headers)
    return 1000 + len(letter.key) + len(letter.value or b"") + headers
