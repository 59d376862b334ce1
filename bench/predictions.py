"""P4: the cost of a prediction over HTTP, against a FastAPI route with the same path that reads its body and returns a
constant: `python -m bench.predictions`.

Each server is a process with one worker: `perceptron run` with a given model of 20 named features, and FastAPI under
uvicorn with uvloop, httptools and no access log. wrk sends requests to them in turns on 16 connections, and the figure
of a round is the ratio of their answers. CPU seconds give the same ratio on a machine with other programs.

MLServer is measured too if the environment has `MLSERVER=…/bin/mlserver`, which needs a separate environment: pip
install mlserver mlserver-sklearn. It serves scikit-learn's Perceptron from its main process, its fastest setup.
"""

import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.figure import Figure
from service.embedded.servers import free_port

ROUNDS, SECONDS = 5, 2
FEATURES, CONNECTIONS, INSTANCES = 20, 16, 1000
FEW_CONNECTIONS = 4
"""For large requests: on more connections they would only wait in memory."""
PATH = "/v1/models/m/predict"
TICKS = os.sysconf("SC_CLK_TCK")
ROUTES = Path(__file__).with_name("routes.py")


class Rates(NamedTuple):
    """The answers of a server while wrk sent requests."""

    per_second: float
    """Answers a second by the clock."""
    per_cpu_second: float
    """Answers in a CPU second of the server."""


class Serving(NamedTuple):
    """A server that listens."""

    port: int
    pid: int
    path: str = PATH

    def ask(self, script: Path, connections: int, seconds: int) -> Rates:
        """Let wrk send requests; raises RuntimeError if an answer is an error."""
        url, cpu_before = f"http://127.0.0.1:{self.port}{self.path}", _cpu_seconds(self.pid)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
        summary = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        if summary["bad"] or not summary["answers"]:
            raise RuntimeError(f"{url}: {summary['bad']} of {summary['answers']} answers were errors")
        return Rates(
            summary["answers"] / summary["seconds"], summary["answers"] / (_cpu_seconds(self.pid) - cpu_before)
        )


def figures() -> list[Figure]:
    """P4; raises RuntimeError if wrk is not installed, or a server does not answer."""
    if shutil.which("wrk") is None:
        raise RuntimeError("P4 needs wrk, which is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        single_script, many_script = (_script(Path(folder) / f"{n}.lua", n) for n in (1, INSTANCES))
        ours = stack.enter_context(_perceptron(Path(folder)))
        other_servers = {name: (stack.enter_context(_routes(name)), single_script) for name in ("constant", "river")}
        if program := os.environ.get("MLSERVER"):
            other_servers["mlserver"] = stack.enter_context(_mlserver(Path(folder), Path(program)))
        rates: dict[str, list[Rates]] = {"ours": [], **{name: [] for name in other_servers}, "many": []}
        for _ in range(ROUNDS + 1):
            rates["ours"].append(ours.ask(single_script, CONNECTIONS, SECONDS))
            for name, (server, script) in other_servers.items():
                rates[name].append(server.ask(script, CONNECTIONS, SECONDS))
            rates["many"].append(ours.ask(many_script, FEW_CONNECTIONS, SECONDS))
    warm = {name: rounds[1:] for name, rounds in rates.items()}  # the first round warms up

    def ratios(server: str, member: int) -> list[float]:
        return [a[member] / b[member] for a, b in zip(warm["ours"], warm.get(server, ()), strict=server in warm)]

    many_of, cpu = f"{INSTANCES:,} a request of {FEATURES} named", "the same in processor time"
    others = (
        ("constant", "a FastAPI route that returns a constant", 1.8),
        ("river", "River in FastAPI", 3.0),
        ("mlserver", "scikit-learn's Perceptron in MLServer", 3.0),
    )
    compared = [
        Figure("P4", what, ratios(name, member), goal, True, "×")
        for name, description, goal in others
        for member, what in enumerate((f"one a request, against {description}", cpu))
    ]
    return [
        *compared,
        Figure("P4", "one a request", [a.per_second for a in warm["ours"]], 0.0, True, "a second"),
        Figure(
            "P4", many_of, [INSTANCES * a.per_second for a in warm["many"]], 500_000.0, True,
            "a second",
        ),
        Figure(
            "P4", cpu,
            [INSTANCES * a.per_cpu_second for a in warm["many"]], 500_000.0, True, "a second",
        ),
    ]  # fmt: skip


def names() -> list[str]:
    """The names of the features."""
    return [f"n{i}" for i in range(FEATURES)]


def _script(file: Path, instances: int) -> Path:
    """Write the script of wrk, whose requests have this many instances, or a single one."""
    rng = random.Random(instances)
    rows = [{"features": {name: round(rng.gauss(0, 1), 4) for name in names()}} for _ in range(instances)]
    body: Any = rows[0] if instances == 1 else {"instances": rows}
    return _write_script(file, body)


def _write_script(file: Path, body: Any) -> Path:
    file.with_suffix(".json").write_text(json.dumps(body, separators=(",", ":")))
    file.write_text(f"""
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = io.open("{file.with_suffix(".json")}"):read("a")
done = function(summary, latency)
  local e = summary.errors
  print(string.format('{{"answers": %d, "seconds": %f, "bad": %d}}', summary.requests, summary.duration / 1e6,
    e.connect + e.read + e.write + e.status + e.timeout))
end
""")
    return file


@contextlib.contextmanager
def _perceptron(folder: Path) -> Iterator[Serving]:
    rng, port = random.Random(0), free_port()
    weights = ", ".join(f"{name} = {rng.gauss(0, 1)}" for name in names())
    settings = folder / "settings.toml"
    settings.write_text(f'[models.m]\nrule = "threshold-unit"\nweights = {{ {weights} }}\nthreshold = 1\n')
    with _process([sys.executable, "-m", "service", "-c", str(settings), "run", "-p", str(port)], port) as serving:
        yield serving


@contextlib.contextmanager
def _routes(name: str) -> Iterator[Serving]:
    port = free_port()
    with _process([sys.executable, str(ROUTES), name, str(port)], port) as serving:
        yield serving


MODEL = """
import joblib, numpy, sklearn.linear_model
rng = numpy.random.default_rng(0)
x = rng.normal(size=(1000, 20))
joblib.dump(sklearn.linear_model.Perceptron().fit(x, x @ rng.normal(size=20) > 0), "model.joblib")
"""


@contextlib.contextmanager
def _mlserver(folder: Path, program: Path) -> Iterator[tuple[Serving, Path]]:
    http, grpc, metrics = (free_port() for _ in range(3))
    subprocess.run([program.with_name("python"), "-c", MODEL], check=True, cwd=folder)
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics, "debug": False}
    (folder / "settings.json").write_text(json.dumps({**settings, "parallel_workers": 0}))
    model = {"name": "m", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}}
    (folder / "model-settings.json").write_text(json.dumps(model))
    row = {"name": "predict", "shape": [1, FEATURES], "datatype": "FP64", "data": [0.5] * FEATURES}
    script = _write_script(folder / "mlserver.lua", {"inputs": [row]})
    with _process([str(program), "start", str(folder)], http, "/v2/models/m/infer", {"inputs": [row]}) as serving:
        yield serving, script


@contextlib.contextmanager
def _process(command: list[str], port: int, path: str = PATH, body: Any = None) -> Iterator[Serving]:
    """Run a server; yields it once it answers a prediction."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            raw = json.dumps(body or {"features": dict.fromkeys(names(), 1.0)}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}", raw, {"content-type": "application/json"}
            )
            deadline = time.monotonic() + 60.0
            while True:
                try:
                    urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"no answer from {' '.join(command)}") from None
                    time.sleep(0.1)
            yield Serving(port, process.pid, path)
        finally:
            process.kill()


def _cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used, in user mode and in the kernel."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


if __name__ == "__main__":
    try:
        for figure in figures():
            middle, unit = statistics.median(figure.values), figure.unit
            fine = (middle >= figure.goal) == figure.at_least
            found = f"{middle:,.2f} {unit} ({min(figure.values):,.2f} to {max(figure.values):,.2f})"
            print(f"{figure.name:<20}{found:<52}{'reached' if fine else f'missed: {figure.goal:,g}'}  {figure.what}")
    except RuntimeError as error:
        sys.exit(str(error))
