"""A TCP proxy that simulates network faults: delay, hang, lost and altered replies, refused and cut connections."""

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

CHUNK = 1 << 16


class Proxy:
    """Forwards connections to a local port, on a thread of its own. `heal` ends every fault."""

    def __init__(self, upstream: int = 0) -> None:
        """`upstream` may be set later."""
        self.upstream = upstream
        self.port = 0
        self.delay = 0.0
        """Seconds by which each reply is delayed."""
        self.dropping = False
        """Replies never arrive, though the connection stays open."""
        self.refusing = False
        """New connections are closed at once."""
        self.cut_in: bytes | None = None
        """The next message with these bytes is forwarded in part; then its connection is cut."""
        self.before: Callable[[bytes], bool] | None = None
        """Called with each message before it is forwarded, until it returns True."""
        self.alter: Callable[..., bytes] | None = None
        """Returns what is sent instead of a piece of a reply."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._call(self._ended.set)
        self._thread.join()

    def hang(self) -> None:
        """Forward nothing in either direction; connections stay open and new ones are accepted."""
        self._call(self._passing.clear)

    def refuse(self) -> None:
        """Cut every connection, and accept no new one."""
        self.refusing = True
        self.cut()

    def cut(self) -> None:
        """Cut every connection, even in the middle of a message."""
        self._call(self._abort)

    def heal(self) -> None:
        """End every fault, and forward the delayed bytes."""
        self.delay, self.dropping, self.refusing, self.cut_in = 0.0, False, False, None
        self.before = self.alter = None
        self._call(self._passing.set)

    def _call(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _run(self) -> None:
        self._loop, self._passing, self._ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._passing.set()
        server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ended.wait()
        server.close()
        for turn in range(1000):  # new connections first register themselves, and then all must end
            self._abort()
            await asyncio.sleep(0 if turn < 10 else 0.005)
            if turn >= 10 and not self._writers:
                break

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream, sent = None, deque[Any]()
        try:
            with contextlib.suppress(OSError):
                if not self.refusing:
                    answers, upstream = await asyncio.open_connection("127.0.0.1", self.upstream)
                    self._writers.add(upstream)
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._requests(reader, upstream, sent))
                        group.create_task(self._replies(answers, writer, sent))
        except* OSError:
            pass  # one side has ended, so the other is closed too
        finally:
            for side in (writer, upstream):
                if side is not None:
                    self._writers.discard(side)
                    side.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, _: deque[Any]) -> None:
        while data := await reader.read(CHUNK):
            await self._passing.wait()
            if self.before is not None and self.before(data):
                self.before = None
            if self.cut_in is not None and (place := data.find(self.cut_in)) >= 0:
                self.cut_in = None
                upstream.write(data[: place + (len(data) - place) // 2])
                await upstream.drain()
                raise ConnectionAbortedError("cut inside a message")
            upstream.write(data)
            await upstream.drain()
        raise ConnectionResetError

    async def _pieces(self, answers: asyncio.StreamReader, _: deque[Any]) -> AsyncIterator[bytes]:
        while data := await answers.read(CHUNK):
            yield self.alter(data) if self.alter else data

    async def _replies(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: deque[Any]) -> None:
        async for data in self._pieces(answers, sent):
            await self._passing.wait()
            await asyncio.sleep(self.delay)
            if not self.dropping:
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError


class KafkaProxy(Proxy):
    """Recognises single requests, and holds some of them back.

    Like a broker, which answers in order, it forwards nothing that the client sends after such a request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, bytes] = {}
        self._healed = asyncio.Event()
        self._open = self._last_held = 0
        """Connections are numbered; requests are held back on those up to `_last_held`."""
        self.max_idle_seconds = float("inf")
        """After a longer pause a connection stays open but forwards nothing, as if a load balancer had dropped it."""
        self.reply_seconds: Mapping[int, float] = {}
        """By how many seconds the replies to requests with these API keys are delayed."""

    def hold(self, requests: Mapping[int, bytes], *, old: bool = False) -> None:
        """Hold back requests with these API keys and bytes; if `old`, only on connections that are open now."""
        self._healed.clear()
        self._last_held = self._open if old else sys.maxsize
        self._held = dict(requests)

    def heal(self) -> None:
        """End every fault, and forward the requests that were held back."""
        self._held, self.reply_seconds = {}, {}
        self._call(self._healed.set)
        super().heal()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, sent: deque[Any]) -> None:
        self._open += 1
        number = self._open
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                started = time.monotonic()
                size = await reader.readexactly(4)
                request = await reader.readexactly(int.from_bytes(size))
                if time.monotonic() - started > self.max_idle_seconds:
                    await asyncio.sleep(3600)
                content = self._held.get(int.from_bytes(request[:2]))
                if content is not None and content in request and number <= self._last_held:
                    await self._healed.wait()
                await self._passing.wait()
                sent.append((int.from_bytes(request[:2]), int.from_bytes(request[2:4])))
                upstream.write(size + request)
                await upstream.drain()
        raise ConnectionResetError

    async def _pieces(self, answers: asyncio.StreamReader, sent: deque[Any]) -> AsyncIterator[bytes]:
        """Whole replies. `alter` gets the API key and version of the request too, and the reply without its size."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                reply = await answers.readexactly(int.from_bytes(await answers.readexactly(4)))
                request = sent.popleft()
                reply = self.alter(*request, reply) if self.alter else reply
                await asyncio.sleep(self.reply_seconds.get(request[0], 0.0))
                yield len(reply).to_bytes(4) + reply
