"""Answers that are read into memory of their own are those that the client's stream would give."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from aiokafka.errors import CorrelationIdError, KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4
from aiokafka.protocol.metadata import MetadataRequest

from service.streaming.answers import Body
from service.streaming.connection import Connection
from service.streaming.security import Security

RECORDS, FEW = bytes(range(256)) * 400, b"of another partition"
FETCH = FetchRequest(1, 1, 1, 1, [("t", [(0, 0, 1), (1, 0, 1)])])
FETCHED = FetchResponse_v4(0, [("t", [(0, 0, 9, 9, [], RECORDS), (1, 0, 9, 9, [], FEW)])])
VERSIONS = struct.pack(">hi3h3h3h", 0, 3, 18, 0, 0, 1, 4, 4, 3, 0, 1)


def framed(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation) + body


@asynccontextmanager
async def connected(answer: Callable[[asyncio.StreamWriter], Any]) -> AsyncIterator[Connection]:
    """A connection to a broker that answers the first request as one, and then as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        writer.write(framed(1, VERSIONS))
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        await answer(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    made = Connection("127.0.0.1", port, sasl_oauth_token_provider=Security())
    try:
        await made.connect()
        yield made
    finally:
        made.close()
        server.close()
        await server.wait_closed()


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def run(loop: Any, work: Any) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(work, 30))


@LOOPS
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_answers_are_whole_however_they_come(loop: Any, piece: int) -> None:
    sent = framed(2, FETCHED.encode()) + framed(3, VERSIONS) + framed(4, FETCHED.encode())

    async def answer(writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(sent), piece):
            writer.write(sent[at : at + piece])
            if at < 600:  # the rest comes as it comes
                await asyncio.sleep(0)

    async def work() -> list[Any]:
        async with connected(answer) as connection:
            return await asyncio.gather(*map(connection.send, (FETCH, ApiVersionRequest(), FETCH)))

    first, versions, last = run(loop, work())
    assert versions.api_versions == [(18, 0, 0), (1, 4, 4), (3, 0, 1)]
    for fetched in (first, last):
        [(topic, partitions)] = fetched.topics
        assert (topic, [bytes(records) for *_, records in partitions]) == ("t", [RECORDS, FEW])
        # What is most of an answer stays where it was read; what is not holds on to nothing.
        assert [type(records) for *_, records in partitions] == [memoryview, bytes]
        assert partitions[0][-1].readonly


@LOOPS
@pytest.mark.parametrize(
    ("sent", "raised", "why"),
    [
        (framed(7, FETCHED.encode()), CorrelationIdError, "Correlation ids do not match: sent 2, recv 7"),
        (struct.pack(">i", 3) + b"abc", KafkaConnectionError, "an answer of 3 bytes is none"),
        (struct.pack(">i", -5), KafkaConnectionError, "an answer of -5 bytes is none"),
        (framed(2, FETCHED.encode())[:500], KafkaConnectionError, "0 bytes read"),
        (b"", KafkaConnectionError, "0 bytes read"),
    ],
    ids=["of another request", "too short", "negative", "cut", "none"],
)
def test_what_is_no_answer_ends_the_connection(loop: Any, sent: bytes, raised: Any, why: str) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.write_eof()

    async def work() -> None:
        async with connected(answer) as connection:
            with pytest.raises(raised) as error:
                await connection.send(FETCH)
            assert why in f"{error.value} {error.value.__cause__}"
            assert not connection.connected()

    run(loop, work())


def test_a_body_is_read_as_a_file() -> None:
    body = Body(memoryview(RECORDS))
    assert [body.read(3), body.read(0), bytes(body.read(1 << 20)), body.read(1)] == [
        RECORDS[:3], b"", RECORDS[3:], b"",
    ]  # fmt: skip


@LOOPS
def test_who_is_asked_for_the_brokers_and_left_is_closed(loop: Any) -> None:
    """The library's bootstrap lets go of it: nobody else would close it."""

    async def leave() -> None:
        asked = asyncio.Event()

        async def silent(_: asyncio.StreamWriter) -> None:
            asked.set()

        async with connected(silent) as made:
            asking = asyncio.ensure_future(made.send(MetadataRequest([])))
            await asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not made.connected()

    run(loop, leave())
