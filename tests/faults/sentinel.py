"""A primary with two replicas, three sentinels, and a trial whose services use the sentinels."""

import contextlib
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from service.embedded.servers import Server, free_port
from tests.conftest import perceptron, wait
from tests.faults.proxy import Proxy
from tests.faults.trial import Trial
from tests.faults.watcher import Change, Reload, Watcher

SERVICE = "perceptron"
USER, PASSWORD, RIGHTS = "learner", "secret", "~perceptron:* +@all"
"""The services' user. A server accepts its connections only while it is watched."""
WATCHING = f"""
sentinel monitor {SERVICE} 127.0.0.1 {{primary}} 2
sentinel down-after-milliseconds {SERVICE} 1500
sentinel failover-timeout {SERVICE} 2000
sentinel parallel-syncs {SERVICE} 2
"""
"""They connect once a second, so with less than a second they would take a new primary for down."""


def asked(server: Server, *command: str) -> Any:
    """The answer to a command, as text."""
    with Redis(host="127.0.0.1", port=server.port, decode_responses=True, socket_timeout=5) as client:
        return client.execute_command(*command)


class Redundant:
    """Three servers with the same data, one of them the primary, and their sentinels."""

    def __init__(self, stack: ExitStack, folder: Path, binary: str) -> None:
        def started(name: str, settings: str, *flags: str) -> Server:
            port, own = free_port(), folder / name
            own.mkdir(parents=True)
            file = own / "conf"  # the server adds what it learns of the others
            file.write_text(f"bind 127.0.0.1\nport {port}\ndir {own}\n{settings}")
            server = Server([binary, str(file), *flags], port, own / "log")
            stack.callback(server.stop)
            server.start()
            return server

        users = folder / "users.acl"  # read at each start; `CONFIG REWRITE` does not change it
        users.parent.mkdir()
        users.write_text(f"user default on nopass ~* &* +@all\nuser {USER} off >{PASSWORD} {RIGHTS}\n")
        keeping = f'appendonly yes\nsave ""\nrepl-diskless-sync-delay 0\naclfile {users}\n'
        first = started("redis-0", keeping)
        following = f"{keeping}replicaof 127.0.0.1 {first.port}\n"
        self.servers = [first, started("redis-1", following), started("redis-2", following)]
        watching = WATCHING.format(primary=first.port)
        self.sentinels = [started(f"sentinel-{i}", watching, "--sentinel") for i in range(3)]
        for server in self.servers[1:]:
            self.follows(server, first)
        wait(self._complete, "the sentinels know each other and the replicas")

    def _complete(self) -> bool:
        def known(sentinel: Server) -> tuple[int, int]:
            about = asked(sentinel, "SENTINEL", "MASTER", SERVICE)
            return int(about["num-other-sentinels"]), int(about["num-slaves"])

        return all(known(sentinel) == (2, 2) for sentinel in self.sentinels)

    def primary(self, but: Server) -> Server:
        """Wait for another primary than this server, on which all sentinels and the primary itself agree."""

        def agreed() -> Server | None:
            with contextlib.suppress(RedisError):
                addresses = {tuple(asked(s, "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)) for s in self.sentinels}
                ((_, port),) = addresses if len(addresses) == 1 else {("", 0)}
                for server in self.servers:
                    if server is not but and server.port == int(port) and asked(server, "ROLE")[0] == "master":
                        return server
            return None

        agreed_on: Server = wait(agreed, "the sentinels agree on a primary that is one")
        return agreed_on

    def follows(self, server: Server, primary: Server) -> None:
        """Wait until it replicates this primary."""

        def synchronised() -> bool:
            with contextlib.suppress(RedisError):
                role = asked(server, "ROLE")
                return bool(role[0] == "slave" and role[2] == primary.port and role[3] == "connected")
            return False

        wait(synchronised, "a replica follows")


class Primaries:
    """A `Watcher` for each server that is or was the primary."""

    def __init__(self, model: str, first: Server) -> None:
        self._model, self._first = model, first
        self._all: list[Watcher] = []

    def look(self) -> None:
        """Watch the first primary."""
        self.look_at(self._first, current=True)

    def look_at(self, server: Server, *, current: bool) -> None:
        """Watch this server too. Nothing may write to it until this returns."""
        watcher = Watcher(server.address, self._model, of=len(self._all) + 1)
        watcher.look()
        self._all.append(watcher)
        if current:
            self.catch_up, self.head = watcher.catch_up, watcher.head
        asked(server, "ACL", "SETUSER", USER, "on")

    def end(self) -> None:
        """Stop watching."""
        for watcher in self._all:
            watcher.end()

    @property
    def seen(self) -> list[Change | Reload]:
        """The changes of all servers, in order of time."""
        return sorted((change for watcher in self._all for change in tuple(watcher.seen)), key=lambda change: change.at)


class SentinelTrial(Trial):
    """A trial whose services know the sentinels only."""

    def __init__(
        self, kafka: Server, kafka_proxy: Proxy, redundant: Redundant, unused: Proxy, topic: str, folder: Path
    ) -> None:
        super().__init__(kafka, kafka_proxy, redundant.servers[0], unused, topic, folder)
        self.redundant = redundant
        self.redis_address = ""
        sentinels = json.dumps([sentinel.address for sentinel in redundant.sentinels])
        user = f'username = "{USER}"\npassword = "{PASSWORD}"'
        self.settings = f"[redis]\nsentinels = {sentinels}\n{user}"
        self._watcher = Primaries(topic, redundant.servers[0])

    def perceptron(self, command: str, *flags: str) -> Any:
        """Run a command with the settings of a service, and so by the sentinels."""
        file = str(self.services[0].config)
        return perceptron("-c", file, command, "-t", self.topic, "-b", self.kafka.address, *flags)

    @contextmanager
    def unreplicated(self) -> Iterator[None]:
        """No replica gets what the primary accepts meanwhile: a head and its child."""
        others = [server.process for server in self.redundant.servers if server is not self.redis and server.process]
        for process in others:
            process.send_signal(signal.SIGSTOP)
        asked(self.redis, "CLIENT KILL TYPE replica")
        self._watcher.catch_up()  # a head that is reported late may be on the replicas
        for lost in ("a head", "its child"):
            before = self._watcher.head()
            wait(lambda: self._watcher.head() != before, f"{lost} that is going to be lost")  # noqa: B023 - at once
        yield
        for process in others:
            process.send_signal(signal.SIGCONT)

    def promoted(self) -> None:
        """Wait until another server is the primary, and the third one follows it."""
        old = self.redis
        self.redis = self.redundant.primary(but=old)
        self._watcher.look_at(self.redis, current=True)
        for server in self.redundant.servers:
            if server not in {self.redis, old}:
                self.redundant.follows(server, self.redis)

    def back(self, old: Server) -> None:
        """Start a killed primary again; at first it believes to be one, with its old data."""
        old.start()
        self._watcher.look_at(old, current=False)

    def follows(self, old: Server) -> None:
        """Wait until it is a replica. It accepts no service until it is watched again."""
        self.redundant.follows(old, self.redis)
        asked(old, "ACL", "SETUSER", USER, "off")
        asked(old, "CLIENT KILL USER", USER)
