"""A TCP proxy that does the network's part: delay, hang, drop replies, refuse, cut, also inside a message."""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

CHUNK = 1 << 16


class Proxy:
    """Passes connections on to a port of the loopback, on a thread of its own. `heal` ends every fault."""

    def __init__(self, upstream: int = 0) -> None:
        """`upstream` may be set later."""
        self.upstream = upstream
        self.port = 0
        self.delay = 0.0
        """Seconds that each reply takes longer."""
        self.dropping = False
        """Replies never arrive, though the connection stands."""
        self.refusing = False
        """Connections are closed as they come."""
        self.cut_in: bytes | None = None
        """The next message that holds this is sent on by half; then its connection is gone."""
        self.before: Callable[[bytes], bool] | None = None
        """Is given each message before it is sent on, until it says that this was the one."""
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
        """Nothing passes in either direction, though connections stand and new ones are taken."""
        self._call(self._passing.clear)

    def refuse(self) -> None:
        """No connection stands or comes about."""
        self.refusing = True
        self.cut()

    def cut(self) -> None:
        """End every connection, in the middle of whatever is under way."""
        self._call(self._abort)

    def heal(self) -> None:
        """The network is well again; what hung goes on."""
        self.delay, self.dropping, self.refusing, self.cut_in = 0.0, False, False, None
        self.before = None
        self._call(self._passing.set)

    def _call(self, what: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(what)

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
        for turn in range(1000):  # connections that were just taken are to be known, and all of them to be gone
            self._abort()
            await asyncio.sleep(0 if turn < 10 else 0.005)
            if turn >= 10 and not self._writers:
                break

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream = None
        try:
            with contextlib.suppress(OSError):
                if not self.refusing:
                    answers, upstream = await asyncio.open_connection("127.0.0.1", self.upstream)
                    self._writers.add(upstream)
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._requests(reader, upstream))
                        both.create_task(self._replies(answers, writer))
        except* OSError:
            pass  # one side is gone, so the other goes too
        finally:
            for one in (writer, upstream):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._passing.wait()
            if self.before is not None and self.before(data):
                self.before = None
            if self.cut_in is not None and (at := data.find(self.cut_in)) >= 0:
                self.cut_in = None
                upstream.write(data[: at + (len(data) - at) // 2])
                await upstream.drain()
                raise ConnectionAbortedError("cut inside a message")
            upstream.write(data)
            await upstream.drain()
        raise ConnectionResetError

    async def _replies(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(CHUNK):
            await self._passing.wait()
            await asyncio.sleep(self.delay)
            if not self.dropping:
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError


class KafkaProxy(Proxy):
    """Knows one request from another, and keeps some of them back.

    As a broker does that answers in order, it passes nothing on that the client sends behind such a request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, bytes] = {}
        self._healed = asyncio.Event()
        self._open = self._deaf = 0
        """Connections are numbered; up to `_deaf` requests are kept back."""
        self.max_idle_seconds = float("inf")
        """A connection that sent nothing for longer stands, and nothing passes: a load balancer has dropped it."""

    def keep(self, requests: Mapping[int, bytes], *, old: bool = False) -> None:
        """Keep back requests of these keys that hold these bytes; of `old`, only on connections that stand now."""
        self._healed.clear()
        self._deaf = self._open if old else sys.maxsize
        self._kept = dict(requests)

    def heal(self) -> None:
        """What was kept back is sent on."""
        self._kept = {}
        self._call(self._healed.set)
        super().heal()

    async def _requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        self._open += 1
        number = self._open
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                started = time.monotonic()
                size = await reader.readexactly(4)
                request = await reader.readexactly(int.from_bytes(size))
                if time.monotonic() - started > self.max_idle_seconds:
                    await asyncio.sleep(3600)
                kept = self._kept.get(int.from_bytes(request[:2]))
                if kept is not None and kept in request and number <= self._deaf:
                    await self._healed.wait()
                await self._passing.wait()
                upstream.write(size + request)
                await upstream.drain()
        raise ConnectionResetError
