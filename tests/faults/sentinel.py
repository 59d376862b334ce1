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
"""The user of the services. A server accepts its connections only while a watcher observes that server."""
WATCHING = f"""
sentinel monitor {SERVICE} 127.0.0.1 {{primary}} 2
sentinel down-after-milliseconds {SERVICE} 1500
sentinel failover-timeout {SERVICE} 2000
sentinel parallel-syncs {SERVICE} 2
"""
"""Sentinels connect once a second, so with a shorter time they would treat a new primary as down."""


def execute(server: Server, *command: str) -> Any:
    """Send a command to a server; returns the answer as text."""
    with Redis(host="127.0.0.1", port=server.port, decode_responses=True, socket_timeout=5) as client:
        return client.execute_command(*command)


class Redundant:
    """Three servers with the same data, one of them the primary, and their sentinels."""

    def __init__(self, stack: ExitStack, folder: Path, binary: str) -> None:
        def start(name: str, settings: str, *flags: str) -> Server:
            port, data_folder = free_port(), folder / name
            data_folder.mkdir(parents=True)
            file = data_folder / "conf"  # the server adds what it learns about the others
            file.write_text(f"bind 127.0.0.1\nport {port}\ndir {data_folder}\n{settings}")
            server = Server([binary, str(file), *flags], port, data_folder / "log")
            stack.callback(server.stop)
            server.start()
            return server

        users = folder / "users.acl"  # read at each start; `CONFIG REWRITE` does not change it
        users.parent.mkdir()
        users.write_text(f"user default on nopass ~* &* +@all\nuser {USER} off >{PASSWORD} {RIGHTS}\n")
        common = f'appendonly yes\nsave ""\nrepl-diskless-sync-delay 0\naclfile {users}\n'
        primary = start("redis-0", common)
        replica = f"{common}replicaof 127.0.0.1 {primary.port}\n"
        self.servers = [primary, start("redis-1", replica), start("redis-2", replica)]
        sentinel = WATCHING.format(primary=primary.port)
        self.sentinels = [start(f"sentinel-{i}", sentinel, "--sentinel") for i in range(3)]
        for server in self.servers[1:]:
            self.wait_for_replica(server, primary)
        wait(self._complete, "the sentinels know each other and the replicas")

    def _complete(self) -> bool:
        def peers(sentinel: Server) -> tuple[int, int]:
            reply = execute(sentinel, "SENTINEL", "MASTER", SERVICE)
            return int(reply["num-other-sentinels"]), int(reply["num-slaves"])

        return all(peers(sentinel) == (2, 2) for sentinel in self.sentinels)

    def primary(self, old: Server) -> Server:
        """Wait for a primary other than `old`, on which all sentinels and the primary itself agree."""

        def find_primary() -> Server | None:
            with contextlib.suppress(RedisError):
                addresses = {tuple(execute(s, "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)) for s in self.sentinels}
                ((_, port),) = addresses if len(addresses) == 1 else {("", 0)}
                for server in self.servers:
                    if server is not old and server.port == int(port) and execute(server, "ROLE")[0] == "master":
                        return server
            return None

        agreed_on: Server = wait(find_primary, "the sentinels agree on a primary that is one")
        return agreed_on

    def wait_for_replica(self, server: Server, primary: Server) -> None:
        """Wait until the server replicates this primary."""

        def is_synchronised() -> bool:
            with contextlib.suppress(RedisError):
                role = execute(server, "ROLE")
                return bool(role[0] == "slave" and role[2] == primary.port and role[3] == "connected")
            return False

        wait(is_synchronised, "a replica follows")


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
        watcher = Watcher(server.address, self._model, server=len(self._all) + 1)
        watcher.look()
        self._all.append(watcher)
        if current:
            self.catch_up, self.head = watcher.catch_up, watcher.head
        execute(server, "ACL", "SETUSER", USER, "on")

    def end(self) -> None:
        """Stop watching."""
        for watcher in self._all:
            watcher.end()

    @property
    def changes(self) -> list[Change | Reload]:
        """The changes of all servers, in order of time."""
        changes = (change for watcher in self._all for change in tuple(watcher.changes))
        return sorted(changes, key=lambda change: change.seconds)


class SentinelTrial(Trial):
    """A trial whose services know only the sentinels."""

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
        """Run a command with the settings of a service, so that it finds the primary by the sentinels."""
        file = str(self.services[0].config)
        return perceptron("-c", file, command, "-t", self.topic, "-b", self.kafka.address, *flags)

    @contextmanager
    def unreplicated(self) -> Iterator[None]:
        """Within the context, the primary accepts a head and its child, and no replica gets them."""
        replicas = [server.process for server in self.redundant.servers if server is not self.redis and server.process]
        for process in replicas:
            process.send_signal(signal.SIGSTOP)
        execute(self.redis, "CLIENT KILL TYPE replica")
        self._watcher.catch_up()  # a head that is reported late may be on the replicas
        for head_name in ("a head", "its child"):
            previous = self._watcher.head()
            wait(lambda: self._watcher.head() != previous, f"{head_name} that will be lost")  # noqa: B023 - called at once
        yield
        for process in replicas:
            process.send_signal(signal.SIGCONT)

    def kill_primary(self, primary: Server) -> None:
        """Kill it. The watcher may lag behind by many heads, which would never be reported."""
        self._watcher.catch_up()
        primary.kill()

    def wait_for_promotion(self) -> None:
        """Wait until another server is the primary, and the third one follows it."""
        old = self.redis
        self.redis = self.redundant.primary(old)
        self._watcher.look_at(self.redis, current=True)
        for server in self.redundant.servers:
            if server not in {self.redis, old}:
                self.redundant.wait_for_replica(server, self.redis)

    def restart(self, old: Server) -> None:
        """Start a killed primary again; at first it still acts as a primary, with its old data."""
        old.start()
        self._watcher.look_at(old, current=False)

    def wait_until_replica(self, old: Server) -> None:
        """Wait until it is a replica. It refuses services until a watcher observes it again."""
        self.redundant.wait_for_replica(old, self.redis)
        execute(old, "ACL", "SETUSER", USER, "off")
        execute(old, "CLIENT KILL USER", USER)
