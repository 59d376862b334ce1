"""Services as copies of a process that has imported and compiled what they need, which is most of what a start costs.

`python -m tests.template` is that process. It forks a service for each line of its input and answers with its number;
asked for one of them, it answers how it ended. What a service is from there on, `perceptron` makes of it as always: its
settings, its signals, its exit code. Tests of the command start it themselves.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Copy:
    """A service that runs, with what tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        log.touch()
        started = {"arguments": list(arguments), "log": str(log), "environment": dict(environment)}
        self.pid: int = _ask(started)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None."""
        if self.returncode is None:
            self.returncode = _ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + (timeout or 1e9)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(["perceptron"], timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_alone = threading.Lock()


@functools.cache
def _template() -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "tests.template"], stdin=pipe, stdout=pipe, text=True, bufsize=1)


def _ask(question: Any) -> Any:
    with _alone:
        template = _template()
        assert template.stdin
        assert template.stdout
        print(json.dumps(question), file=template.stdin, flush=True)
        return json.loads(template.stdout.readline())


def _become(arguments: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """In the copy: what a shell does for a command that it starts."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["perceptron", *arguments]


def _serve() -> None:
    from service.cli import main
    from service.process import service

    service.warm_up()
    for line in sys.stdin:
        asked = json.loads(line)
        if "ended" in asked:
            pid, status = os.waitpid(asked["ended"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            _become(**asked)
            main()


if __name__ == "__main__":
    _serve()
