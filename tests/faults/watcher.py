"""Records every change of a model in a real Redis, as the server reports it, for the simulator's judge.

`MONITOR` shows each command in order, including those of scripts. So a copy of the model's hash is kept, and each
accepted head is judged in the state in which it was accepted.
"""

import codecs
import contextlib
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from redis import Redis as Client

from service.snapshots.redis.store import key
from tests.conftest import wait
from tests.simulation import world
from tests.simulation.judge import Judge
from tests.simulation.world import Topic

ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Change(NamedTuple):
    """A command on the model's hash; `by_script` says that a script sent it."""

    command: bytes
    arguments: list[bytes]
    by_script: bool
    seconds: float = 0.0
    """Seconds since 1970."""
    server: int = 0
    """The number of the server, if several are watched."""

    @property
    def accepts(self) -> bool:
        """Whether the command makes another head current."""
        return self.command == b"HSET" and self.by_script and b"head" in self.arguments[1::2]


class Reload(NamedTuple):
    """The whole hash when watching began; `seconds` and `server` are as in Change."""

    fields: dict[bytes, bytes]
    seconds: float = 0.0
    server: int = 0


def parse_line(line: bytes) -> Change | None:
    """The change in a line of MONITOR, if there is one."""
    context, _, command = line.partition(b"] ")
    arguments = [codecs.escape_decode(argument)[0] for argument in ARGUMENT.findall(command)]
    if not arguments:
        return None
    return Change(arguments[0].upper(), arguments[1:], context.endswith(b"lua"), float(context.split()[0]))


class Watcher:
    """Watches one model on one Redis, from `look` until `end` or the end of the server."""

    def __init__(self, address: str, model: str, server: int = 0) -> None:
        self._server = server
        self._host, _, port = address.partition(":")
        self._port, self._key = int(port), key(model).encode()
        self.changes: list[Change | Reload] = []
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._echoed = b""

    def look(self) -> None:
        """Begin to watch, or begin again after the server was down; nothing may write until this returns."""
        self.end()
        self._socket = socket.create_connection((self._host, self._port), timeout=10)
        self._socket.settimeout(None)
        self._socket.sendall(b"MONITOR\r\n")
        lines = self._socket.makefile("rb")
        assert lines.readline().startswith(b"+OK")
        with Client(host=self._host, port=self._port) as client:
            now = time.time()
            fields: dict[bytes, bytes] = client.hgetall(self._key.decode())
        self.changes.append(Reload(fields, now, self._server))
        self._thread = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._thread.start()

    def _read(self, lines: Iterator[bytes]) -> None:
        writing = (b"HSET", b"HDEL", b"DEL", b"UNLINK", b"FLUSHALL", b"FLUSHDB")
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                change = parse_line(line) if line.endswith(b"\n") else None  # otherwise the server died within the line
                if change and change.command == b"ECHO":
                    self._echoed = change.arguments[0]
                if change and change.command in writing and (self._key in change.arguments or not change.arguments):
                    self.changes.append(change._replace(server=self._server))

    def catch_up(self) -> None:
        """Wait until every change up to now is recorded: Redis reports a little later than it answers."""
        token = uuid.uuid4().bytes
        with Client(host=self._host, port=self._port) as client:
            client.echo(token)
        wait(lambda: self._echoed == token, "Redis has reported all commands")

    def head(self) -> bytes:
        """The newest recorded head; b"" if there is none."""
        for change in reversed(self.changes):
            if isinstance(change, Reload):
                return change.fields.get(b"head", b"")
            if change.accepts:
                return change.arguments[change.arguments.index(b"head") + 1]
            if change.command not in {b"HSET", b"HDEL"}:
                break
        return b""

    def end(self) -> None:
        """Stop watching."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        if self._thread is not None:
            self._thread.join()


class WatchedWorld:
    """The world that the judge reads, like `simulation.world.World`, rebuilt from recorded changes."""

    def __init__(self, name: str, topics: list[Topic], letters: dict[bytes, set[bytes | None]]) -> None:
        self.name, self.topics, self.letters = name, topics, letters
        self.redis = world.Redis()

    def topics_of(self, source: Any) -> list[Topic]:  # noqa: ARG002 - the ids of real topics are not known here
        """The topics that a head may have been learned from."""
        return self.topics

    def judge(self, changes: list[Change | Reload]) -> tuple[Judge, list[str]]:
        """Judge each accepted head; return the judge and the accepted digests in order. Raises Violation."""
        judge, accepted, copies = Judge(self), list[str](), {0: self.redis}
        for change in changes:
            self.redis = copies.setdefault(change.server, world.Redis())
            state = self.redis.state
            previous = state.get("digest", b"").decode()
            if isinstance(change, Reload):
                state.clear()
                state.update({name.decode(): value for name, value in change.fields.items()})
                reloaded = state.get("digest", b"").decode()
                if reloaded and reloaded not in judge.heads:
                    previous = previous or (accepted[-1] if change.server else "")
                    # The server wrote this head to its file, and died before it reported the command.
                    judge.check_accepted(previous, state["head"], None)
                    accepted.append(reloaded)
            elif change.command == b"HSET":
                fields = change.arguments[1:]
                state.update(zip((name.decode() for name in fields[::2]), fields[1::2], strict=True))
                if change.accepts:
                    judge.check_accepted(previous, state["head"], None)
                    accepted.append(state["digest"].decode())
            elif change.command == b"HDEL":
                for name in change.arguments[1:]:
                    state.pop(name.decode(), None)
            else:
                state.clear()
        self.redis.check_blobs()
        judge.check_letters()
        return judge, accepted
