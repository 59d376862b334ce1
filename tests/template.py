"""Python programs as copies of a process that has imported and compiled what they need, which is most of a start.

`python -m tests.template KIND` is that process. It forks a program for each line of its input and answers with its
number; asked for one of them, it answers how it ended. What a program does from there on, it does as always: its
arguments, its settings, its signals, its exit code. There is one of KIND `service`, which has the service itself, and
one of KIND `packages`, for altered copies of the service: it has what that imports, and nothing of ours.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = (
    "aiokafka.admin", "fastapi", "httpx", "hypothesis", "jgo", "mmh3", "msgspec.json", "numba", "prometheus_client",
    "pydantic_settings", "pytest", "redis.asyncio", "structlog", "typer.main", "uvloop",
)  # fmt: skip
SERVICE = ("service.process.service", "service.tools.produce", "service.tools.client", "service.tools.check")
PYTEST = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""What `pytest` is told in a copy: some of its plugins are there before it."""


class Done(NamedTuple):
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Copy:
    """`python -m MODULE ARGUMENTS…` that runs, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        out: Path,
        err: Path | None = None,
        stdin: Path | None = None,
        cwd: Path | None = None,
        kind: str = "service",
    ) -> None:
        self._kind = kind
        files = {"stdin": str(stdin or os.devnull), "out": str(out), "err": str(err or out), "cwd": str(cwd or ".")}
        self.pid: int = _ask(kind, {"command": list(command), "environment": dict(environment), **files})
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None."""
        if self.returncode is None:
            self.returncode = _ask(self._kind, {"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        started = time.monotonic()
        while (code := self.poll()) is None:
            if time.monotonic() - started > (timeout or 1e9):
                raise subprocess.TimeoutExpired(["perceptron"], timeout or 0)
            time.sleep(pause(started))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def pause(started: float) -> float:
    """Seconds until the next look at what began then: soon at first, later with little work for who is looked at."""
    return min(0.2, 0.005 + (time.monotonic() - started) / 20)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes = b"",
    seconds: float | None = None,
    kind: str = "service",
) -> Done:
    """Run a program to its end; raises subprocess.TimeoutExpired, and then it is killed."""
    with tempfile.TemporaryDirectory() as folder:
        given, out, err = (Path(folder) / name for name in ("stdin", "out", "err"))
        given.write_bytes(stdin)
        copy = Copy(command, environment, out, err, given, cwd, kind)
        try:
            code = copy.wait(seconds)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"it said: {out.read_text()}{err.read_text()}")
            raise
        finally:
            copy.kill()
        return Done(code, out.read_text(), err.read_text())


_alone = threading.Lock()


@functools.cache
def _template(kind: str) -> "subprocess.Popen[str]":
    # What is altered runs few events, which takes less time than the compiler.
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"} if kind == "packages" else None
    pipe = subprocess.PIPE
    template = subprocess.Popen(
        [sys.executable, "-m", "tests.template", kind],
        stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    atexit.register(template.communicate)
    return template


def _ask(kind: str, question: Any) -> Any:
    with _alone:
        template = _template(kind)
        assert template.stdin
        assert template.stdout
        print(json.dumps(question), file=template.stdin, flush=True)
        return json.loads(template.stdout.readline())


def _become(command: Sequence[str], environment: Mapping[str, str], stdin: str, out: str, err: str, cwd: str) -> None:
    """In the copy: what a shell and the interpreter do for a program that they start."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    os.dup2(os.open(out, flags), 1)
    os.dup2(os.open(err, flags), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[0] = os.getcwd()
    sys.argv[1:] = command[1:]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _serve(kind: str) -> None:
    for name in PACKAGES if kind == "packages" else SERVICE:
        importlib.import_module(name)
    if kind == "packages":
        del sys.modules["tests"]
    else:
        sys.modules["service.process.service"].warm_up()
    # A collection in a copy would otherwise look at all of this, and so copy it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        if "ended" in asked:
            pid, status = os.waitpid(asked["ended"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            _become(**asked)
            sys.exit()


if __name__ == "__main__":
    _serve(sys.argv[1])
