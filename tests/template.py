"""Python programs that are forked from a template process, which has imported and compiled their code already.

`python -m tests.template KIND SOCKET` is the template; it ends with its input. For each line from a connection it forks
a program and answers with its process id, or answers with the exit code of an earlier program. A program has its own
arguments, settings, signals and exit code, as if it had been started by a shell. The template of KIND `service` has
imported the service; that of KIND `packages`, for altered copies of the service, only the packages that the service
imports. All workers of a run share the templates.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = (
    "aiokafka.admin", "fastapi", "httpx", "hypothesis", "jgo", "mmh3", "msgspec.json", "numba", "prometheus_client",
    "pydantic_settings", "pytest", "redis.asyncio", "structlog", "typer.main", "uvloop",
)  # fmt: skip
SERVICE = ("service.process.service", "service.tools.produce", "service.tools.client", "service.tools.check")
KINDS = ("service", "packages")
PYTEST = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""The options of `pytest` in a copy: some of its plugins were loaded before."""


class Done(NamedTuple):
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Copy:
    """A running `python -m MODULE ARGUMENTS…`, with the part of the interface of `subprocess.Popen` that tests use."""

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
        """Its exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = _ask(self._kind, {"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code; raises subprocess.TimeoutExpired."""
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
    """Seconds until the next poll of a condition since `started`: short at first, then longer to cost little work."""
    return min(0.2, 0.005 + (time.monotonic() - started) / 20)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes = b"",
    seconds: float | None = None,
    kind: str = "service",
) -> Done:
    """Run a program to its end; after `seconds` it is killed, and subprocess.TimeoutExpired is raised."""
    with tempfile.TemporaryDirectory() as folder:
        stdin_path, out, err = (Path(folder) / name for name in ("stdin", "out", "err"))
        stdin_path.write_bytes(stdin)
        copy = Copy(command, environment, out, err, stdin_path, cwd, kind)
        try:
            code = copy.wait(seconds)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"its output: {out.read_text()}{err.read_text()}")
            raise
        finally:
            copy.kill()
        return Done(code, out.read_text(), err.read_text())


shared: Path | None = None
"""The folder of the templates' sockets, if workers share them."""


@contextlib.contextmanager
def start_template(kind: str, folder: Path) -> Iterator[Path]:
    """Run a template whose socket is in the folder; yields the path of the socket."""
    path = folder / kind
    # Altered copies learn few events, which takes less time than compiling.
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"} if kind == "packages" else None
    command = [sys.executable, "-m", "tests.template", kind, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[1])
    try:
        while not path.exists():
            assert process.poll() is None, f"the template of {kind} ended with {process.returncode}"
            time.sleep(0.02)
        yield path
    finally:
        process.communicate()


@functools.cache
def _path(kind: str) -> str:
    if shared:
        return str(shared / kind)
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return str(stack.enter_context(start_template(kind, Path(stack.enter_context(tempfile.TemporaryDirectory())))))


def _ask(kind: str, question: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_path(kind))
        connection.sendall(json.dumps(question).encode() + b"\n")
        return json.loads(connection.makefile().readline())


def _become(command: Sequence[str], environment: Mapping[str, str], stdin: str, out: str, err: str, cwd: str) -> None:
    """Prepare the forked process as a shell and the interpreter would, and run the program."""
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


def _serve(kind: str, path: str) -> None:
    for name in PACKAGES if kind == "packages" else SERVICE:
        importlib.import_module(name)
    if kind == "packages":
        del sys.modules["tests"]
    else:
        sys.modules["service.process.service"].warm_up()
    # A garbage collection in a copy would otherwise visit all of these objects, and so copy their pages.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(100)
        os.rename(f"{path}.new", path)  # a client that sees the path can connect
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            with listener.accept()[0] as connection:
                request = json.loads(connection.makefile().readline())
                if pid := request.get("ended"):
                    ended_pid, status = os.waitpid(pid, os.WNOHANG)
                    answer = os.waitstatus_to_exitcode(status) if ended_pid else None
                elif not (answer := os.fork()):
                    break
                connection.sendall(json.dumps(answer).encode() + b"\n")
        else:
            return
    _become(**request)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
