"""Every shell and Python block of every page is run; a page is one session, from its first block to its last.

A `console` block has commands after `$ ` and what each prints; `…` stands for anything. The commands of a `sh` block
end with 0, as does the program of a `python` block. A block with a file name after the language is that file.
The page of an example has the other files of its folder.
The servers `perceptron run` and `redis-server` keep running; another one on the same port replaces them.

` ```sh elsewhere` is for commands that need an engine, a cluster or root: bash only parses them.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import httpx
import pytest

from service.embedded.servers import Server, free_port
from tests.conftest import DEADLINE, SESSION_SECONDS, clean_environment, perceptron, wait
from tests.template import Copy, Done

ROOT = Path(__file__).parents[2]
OWN_TESTS = {
    "docs/events.md": ["unit/learning/events/test_events_page.py", "integration/test_producing.py"],
    "docs/export.md": ["integration/test_export.py"],
    "docs/model.md": ["integration/test_fit.py"],
    "docs/producing.md": ["integration/test_producing.py"],
}
"""Pages whose blocks need other data or servers, and the tests that run them."""
SERVERS = re.compile(r"(perceptron run|redis-server)\b")
QUERIES = re.compile(r"(curl|perceptron (check|inspect|healthcheck|verify|predict|export|dead-letters (list|show)))\b")
"""Commands that change nothing are repeated until they print what is shown, since learning takes time."""


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    word: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    for match in re.finditer(r"^( *)```(\w+)(?: (\S+))?\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(line, match[2], match[3] or "", dedent(match[4]))


PAGES = {
    str(page.relative_to(ROOT)): list(blocks(page))
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md"))
}
RUN = {"console", "sh", "bash", "python"}


class Session:
    """A user who follows a page."""

    def __init__(self, folder: Path, topic: str, kafka: Server, redis: Server) -> None:
        self._folder, self._topic = folder, topic
        self._ports = {"9092": kafka.port, "6379": redis.port}
        self._servers: dict[int, subprocess.Popen[bytes] | Copy] = {}
        self._environment = clean_environment(
            PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS=kafka.address,
            PERCEPTRON_KAFKA__GROUP_ID=f"g-{topic}",
            PERCEPTRON_KAFKA__SESSION_TIMEOUT=str(SESSION_SECONDS),
            PERCEPTRON_REDIS__URL=f"redis://{redis.address}/0",
            PERCEPTRON_HTTP__PORT=str(self._port("8000")),
            COLUMNS="200",
        )
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{self._environment['PATH']}"

    def _port(self, documented: str) -> int:
        return self._ports.setdefault(documented, free_port())

    def adapt(self, text: str) -> str:
        """The page's text with this test's topic and ports."""
        text = re.sub(r"\bchurn\b", self._topic, text)
        return re.sub(
            r"(localhost:|-p |--port )(\d{4})\b",
            lambda match: f"{match[1].replace('localhost', '127.0.0.1')}{self._port(match[2])}",
            text,
        )

    def do(self, block: Block) -> None:
        """Follow a block."""
        text = self.adapt(block.text)
        if "." in block.word:
            (self._folder / block.word).write_text(text)
        elif block.language == "python":
            self._shell(shlex.join([sys.executable, "-c", text]), 0)
        elif block.language == "console":
            for command, output in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                self._command(command, output)
        elif block.language in RUN:
            for command in re.findall(r"^(?!#)((?:.*\\\n)*.+)\n", text, re.MULTILINE):
                self._command(command, None)

    def _command(self, command: str, output: str | None) -> None:
        if SERVERS.match(command):
            return self._serve(shlex.split(command, comments=True))
        fails = re.search("^(perceptron: |fail )", output or "", re.MULTILINE) is not None
        pattern = ".*" if output is None else r"\s*".join([".*".join(map(re.escape, output.strip().split("…"))), ""])
        printed: list[str] = []

        def prints_output() -> bool:
            result = self._run(command)
            printed[:] = [f"{result.returncode}: {result.stdout}{result.stderr}"]
            return fails == (result.returncode != 0) and bool(
                re.fullmatch(pattern, (result.stdout + result.stderr).strip(), re.DOTALL)
            )

        try:
            wait(prints_output, command, DEADLINE if QUERIES.match(command) else 0)
        except AssertionError:
            raise AssertionError(f"$ {command}\n{printed[0]}\ninstead of\n{output}") from None
        return None

    def _run(self, command: str) -> Done:
        # A command without shell syntax runs in this process: a new one takes seconds on a busy machine.
        if match := re.fullmatch(r"(?:echo '([^'\n]*)' \| )?perceptron ([^|<>&;$*]*)", command):
            stdin = None if match[1] is None else f"{match[1]}\n".encode()
            words = shlex.split(match[2], comments=True)
            return perceptron(*words, stdin=stdin, cwd=self._folder, env=self._environment)
        return self._shell(command, None)

    def _shell(self, command: str, code: int | None) -> Done:
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False,
            cwd=self._folder, env=self._environment, timeout=DEADLINE,
        )  # fmt: skip
        assert code in {None, result.returncode}, result.stderr
        return Done(result.returncode, result.stdout, result.stderr)

    def _serve(self, words: list[str]) -> None:
        """Start a server, and stop the one on the same port."""
        is_perceptron = words[0] == "perceptron"
        option = "-p" if is_perceptron else "--port"
        port = int(words[words.index(option) + 1]) if option in words else self._port("8000")
        if port in self._servers:
            self._stop(port)
        log = self._folder / f"{words[0]}-{port}.log"
        if is_perceptron:
            self._servers[port] = Copy(["service", *words[1:]], self._environment, log, cwd=self._folder)
            wait(lambda: self._answers(port), f"{log.read_text() if log.exists() else ''}: ready")
        else:
            with log.open("ab") as out:
                self._servers[port] = subprocess.Popen([*words, "--bind", "127.0.0.1"], stdout=out, cwd=self._folder)
            wait(lambda: "Ready to accept connections" in log.read_text(), "Redis")

    def _answers(self, port: int) -> bool:
        assert self._servers[port].poll() is None
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _stop(self, port: int) -> None:
        process = self._servers.pop(port)
        process.send_signal(15)
        assert process.wait(DEADLINE) == 0

    def end(self) -> None:
        """Stop all servers."""
        for port in reversed(list(self._servers)):
            self._stop(port)


@pytest.mark.nightly
@pytest.mark.parametrize("redis", ["redis-server"], indirect=True)
@pytest.mark.parametrize(
    "page", [p for p, parts in PAGES.items() if {b.language for b in parts} & RUN and p not in OWN_TESTS]
)
def test_the_blocks_of_a_page_work(page: str, kafka: Server, redis: Server, topic: str, tmp_path: Path) -> None:
    session = Session(tmp_path, topic, kafka, redis)
    for file in (ROOT / page).parent.glob("*.*") if page.startswith("examples/") else ():
        (tmp_path / file.name).write_text(session.adapt(file.read_text()))
    try:
        for block in PAGES[page]:
            try:
                if block.word == "elsewhere":
                    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
                else:
                    session.do(block)
            except (AssertionError, subprocess.SubprocessError) as error:
                raise AssertionError(f"{page}, line {block.line}: {error}") from error
    finally:
        session.end()


def test_a_page_that_another_test_runs_is_named_there() -> None:
    for page, tests in OWN_TESTS.items():
        for test in tests:
            text = (ROOT / "tests" / test).read_text()
            assert page.removeprefix("docs/") in text, f"{test} does not read {page}"


def test_blocks_say_what_they_are() -> None:
    """Each block has a known language and word, so none is skipped, and each `make` target exists."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, blocks_of_page in PAGES.items():
        assert len(blocks_of_page) == len(re.findall(r"^ *```", (ROOT / page).read_text(), re.MULTILINE)) / 2, page
        for block in blocks_of_page:
            languages = {*RUN, "text", "toml", "json", "http", "csv"}
            assert block.language in languages, f"{page}, line {block.line}: {block.language}"
            assert block.word in {"", "elsewhere"} or "." in block.word, f"{page}, line {block.line}: {block.word}"
            if block.word == "elsewhere":
                assert re.search(r"^(docker|kubectl|make|.*\bpip) ", block.text, re.MULTILINE), f"{page}: {block.text}"
            if block.language in RUN:
                assert set(re.findall(r"\bmake ([a-z-]+)", block.text)) <= targets, f"{page}, line {block.line}"
