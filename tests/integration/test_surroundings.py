"""What surrounds a process: streams that are closed, full or not read, limits of the system, signals at any time."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.embedded.servers import Server, free_port
from tests.conftest import DEADLINE, clean_environment, one_line, wait

pytestmark = pytest.mark.nightly

COMMAND = [sys.executable, "-m", "service"]
DROPPED = "perceptron_dropped_log_lines_total"


def command(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    options = {"stderr": subprocess.PIPE, "env": clean_environment(), **options}
    return subprocess.run([*COMMAND, *arguments], text=True, timeout=DEADLINE, check=False, **options)


@pytest.mark.parametrize("arguments", ["--help", "config", "config --json", "run --help", "check -t t -b 127.0.0.1:1"])
def test_output_that_cannot_be_written_is_one_line(arguments: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = command(*arguments.split(), stdout=full, cwd=tmp_path)
        assert result.returncode == 1
        assert one_line(result.stderr) == "perceptron: the output cannot be written: No space left on device\n"
        assert command(*arguments.split(), stdout=full, stderr=full, cwd=tmp_path).returncode == 1


def test_a_reader_that_ends_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = command("config", stdout=writer, cwd=tmp_path)
    os.close(writer)
    assert result.stderr == ""


@pytest.mark.parametrize("where", ["argument", "variable", "name"])
def test_text_that_is_not_utf_8_is_one_line(where: str, tmp_path: Path) -> None:
    bad = b"bad-\xff"
    name, value = (b"PERCEPTRON_\xff", b"x") if where == "name" else (b"PERCEPTRON_TOPICS", bad)
    environment = {os.fsencode(k): os.fsencode(v) for k, v in clean_environment().items()}
    added = {} if where == "argument" else {name: value}
    arguments: list[str | bytes] = ["-t", bad] if where == "argument" else []
    result = subprocess.run([*COMMAND, "config", *arguments], env=environment | added, cwd=tmp_path,
                            capture_output=True, timeout=DEADLINE, check=False)  # fmt: skip
    assert result.returncode == 2
    assert "expected text in UTF-8" in one_line(result.stderr.decode())


def test_a_character_that_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    env = clean_environment(PYTHONIOENCODING="latin-1", PERCEPTRON_KAFKA__GROUP_ID="größe→")
    result = command("config", stdout=subprocess.PIPE, cwd=tmp_path, env=env, encoding="latin-1")
    assert (result.returncode, result.stderr, "größe\\u2192" in result.stdout) == (0, "", True)


@pytest.fixture
def start(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start `perceptron run`; returns the process and a client of it."""
    started = list[tuple[Any, httpx.Client]]()

    def run(**options: Any) -> tuple[Any, httpx.Client]:
        port = str(free_port())
        flags = ["-t", topic, "-b", kafka.address, "--redis", f"redis://{redis.address}/0", "-p", port]
        process = subprocess.Popen([*COMMAND, "run", *flags, "--create-topics"], cwd=tmp_path, env=clean_environment(),
                                   **options)  # fmt: skip
        started.append((process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)))
        return started[-1]

    yield run
    for process, client in started:
        client.close()
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_ready(process: Any, client: httpx.Client) -> None:
    def is_ready() -> bool:
        assert process.poll() is None
        try:
            return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    wait(is_ready, "it is ready")


def stop(process: Any) -> int:
    process.send_signal(signal.SIGTERM)
    code: int = process.wait(DEADLINE)
    return code


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_process_runs_without_standard_streams(start: Callable[..., Any], closed: tuple[int, ...]) -> None:
    process, client = start(preexec_fn=lambda: [*map(os.close, closed)])
    wait_until_ready(process, client)
    assert stop(process) == 0


@pytest.mark.parametrize("how", ["reader-ended", "full-disk", "not-read"])
def test_nothing_waits_for_the_log(start: Callable[..., Any], how: str) -> None:
    """Lines that cannot be written are dropped and counted."""
    reader, writer = os.pipe()
    if how == "full-disk":
        os.dup2(os.open("/dev/full", os.O_WRONLY), writer)
    elif how == "reader-ended":
        os.close(reader)
    else:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(512))
        os.set_blocking(writer, True)
    process, client = start(stderr=writer)
    wait_until_ready(process, client)
    dropped = [line for line in client.get("/metrics").text.splitlines() if line.startswith(DROPPED)]
    assert float(dropped[0].split()[-1]) >= 2
    assert stop(process) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_modules_are_imported_ends_the_process(number: int, code: int, tmp_path: Path) -> None:
    for module in ("numpy", "numba", "fastapi", "aiokafka"):
        with subprocess.Popen([sys.executable, "-X", "importtime", "-m", "service", "run", "-t", "t"], cwd=tmp_path,
                              stderr=subprocess.PIPE, text=True, env=clean_environment()) as process:  # fmt: skip
            assert process.stderr
            for line in process.stderr:
                if f"| {module}" in line.replace(" ", "").replace("|", "| "):
                    break
            process.send_signal(number)
            rest = [line for line in process.stderr if not line.startswith("import time:")]
            assert (process.wait(DEADLINE), rest) == (code, [])


def test_a_signal_while_kernels_are_compiled_ends_the_process(tmp_path: Path) -> None:
    env = clean_environment(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    with subprocess.Popen([*COMMAND, "run", "-t", "t", "-p", "0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
                          env=env) as process:  # fmt: skip
        assert process.stderr
        next(line for line in process.stderr if "compiling" in line)
        process.terminate()
        assert process.wait(5) == 0


@pytest.mark.parametrize(("limit", "size"), [(resource.RLIMIT_NOFILE, 20), (resource.RLIMIT_AS, 600 << 20)])
def test_a_system_that_allows_too_little_is_one_line(limit: int, size: int, tmp_path: Path) -> None:
    result = command("run", "-t", "t", cwd=tmp_path, preexec_fn=lambda: resource.setrlimit(limit, (size, size)))
    assert result.returncode == 2
    assert "the system allows" in one_line(result.stderr)
