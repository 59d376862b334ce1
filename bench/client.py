"""A client that requests predictions continuously, in a separate process, so that it measures only the service.

`python -m bench.client PORT MODEL BODY PAUSE` sends requests and waits PAUSE seconds after each answer, until its input
ends; then it prints the milliseconds of each answer, in order.
"""

import contextlib
import gc
import json
import math
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_TIMESTAMPS = 64
"""SO_TIMESTAMPNS_NEW of Linux: received data has its time of arrival."""
_TIMESTAMP_BYTES = socket.CMSG_SPACE(struct.calcsize("qq"))


class Connection:
    """A persistent connection, for predictions of one model."""

    def __init__(self, port: int, model: str) -> None:
        path = f"/v1/models/{model}/predict"
        self._head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Return the time at which the whole answer arrived, as `time.time_ns`, and its body; raises ValueError.

        The kernel records the time: this process may wait for a CPU, which is not the service's time.
        """
        self._socket.sendall(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        answer, arrived = b"", 0
        while not _is_complete(answer):
            chunk, ancillary, _, _ = self._socket.recvmsg(1 << 16, _TIMESTAMP_BYTES)
            if not chunk:
                raise ConnectionError("the service has closed the connection")
            answer += chunk
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            arrived = seconds * 10**9 + nanoseconds
        if b" 200 " not in answer[:16]:
            raise ValueError(answer.decode())
        return arrived, answer.partition(b"\r\n\r\n")[2]


def _is_complete(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length)


class Answers:
    """The answers of a client that has ended, in milliseconds."""

    milliseconds: Sequence[float] = ()


@contextmanager
def asking(port: int, model: str, features: object, pause: float = 0.002) -> Iterator[Answers]:
    """Run a client that requests predictions within the context; the yielded object has its answers afterwards."""
    body, answers = json.dumps({"features": features}), Answers()
    command = [
        sys.executable,
        "-m",
        "bench.client",
        str(port),
        model,
        body,
        str(pause),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout
        client.stdout.readline()  # it has its first answer
        try:
            yield answers
        finally:
            out, _ = client.communicate()
            with contextlib.suppress(ValueError):  # the client failed and printed its error
                answers.milliseconds = json.loads(out)
    assert answers.milliseconds, "no answers"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _main(port: str, model: str, body: str, pause: str) -> None:
    done = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    connection, raw = Connection(int(port), model), body.encode()
    connection.ask(raw)
    gc.disable()
    print("begun", flush=True)
    answers = []
    while not done.wait(float(pause)):
        began = time.time_ns()
        arrived, _ = connection.ask(raw)
        answers.append(round((arrived - began) / 1e6, 3))
    print(json.dumps(answers))


if __name__ == "__main__":
    _main(*sys.argv[1:])
