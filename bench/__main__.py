"""`python -m bench`: measures, prints the table with its goals and writes it as JSON to bench.json.

ONLY=P1 selects rows, which then replace those of an earlier run. With `--write` nothing is measured: the tables of
docs/performance.md are written from bench.json.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figure import BROKER, PARTS, REDIS, WHOLE, Figure, chosen
from service.embedded.servers import KAFKA

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "bench.json", ROOT / "docs" / "performance.md"
MODULES = {
    "learning": ("P1", "P1b", "P1c", "P1d", "P2"),
    "kernel": ("P3",),
    "predictions": ("P4",),
    "latency": ("P5", "P6"),
    "saving": ("P7",),
    "start": ("P8",),
    "memory": ("P9",),
    "topics": ("P10",),
    "joins": ("P11",),
    "posts": ("P12",),
    PARTS: (PARTS,),
}
"""The rows of each module. A module has a function `figures`, which returns a list of `Figure`."""
PACKAGES = ("numpy", "numba", "msgspec", "aiokafka", "redis", "uvicorn", "fastapi")


def verdict(figure: Figure) -> str:
    """`reached` or `missed`, by the median; `not measured` without values."""
    if not figure.values:
        return "not measured"
    middle = median(figure.values)
    return "reached" if (middle >= figure.goal if figure.at_least else middle <= figure.goal) else "missed"


def row(figure: Figure) -> list[str]:
    """The cells of a figure: row, description, median, range, goal, verdict."""
    if figure.name == PARTS:  # a part of a whole has no goal
        return [figure.name, figure.what, *_median_and_range(figure), "", ""]
    goal = f"{'≥' if figure.at_least else '≤'} {_number(figure.goal)} {figure.unit}"
    return [figure.name, figure.what, *_median_and_range(figure), goal, verdict(figure)]


def _median_and_range(figure: Figure) -> tuple[str, str]:
    if not figure.values:
        return "-", "-"
    spread = f"{_number(min(figure.values))} to {_number(max(figure.values))}"
    return f"{_number(median(figure.values))} {figure.unit}", spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measure(keep: Callable[[list[Figure]], object]) -> tuple[list[Figure], bool]:
    """Measure the selected figures; returns them, and whether all could be measured. `keep` gets those so far."""
    figures, complete = list[Figure](), True
    for module, names in MODULES.items():
        if not any(map(chosen, names)):
            continue
        module_name, began = f"bench.{module}", time.monotonic()
        if find_spec(module_name) is None:
            print(f"{', '.join(names)}: there is no {module_name}", file=sys.stderr)
            complete = False
            continue
        try:
            figures += [figure for figure in importlib.import_module(module_name).figures() if chosen(figure.name)]
        except Exception:
            traceback.print_exc()
            complete = False
        keep(figures)
        print(f"{module}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return figures, complete


def about() -> dict[str, str]:
    """The date, commit, machine and versions of a run."""
    cpu = next((line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "cpu": f"{cpu or platform.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "versions": f"Python {platform.python_version()}, {versions}, Kafka {KAFKA.rpartition(':')[2]}, {_redis()}",
    }


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def _redis() -> str:
    from bench import world

    info = world.store().info("server")
    return f"{info.get('server_name', 'redis').capitalize()} {info.get('valkey_version') or info['redis_version']}"


def merge(figures: Iterable[Figure]) -> dict[str, Any]:
    """The content of bench.json: these figures, and the rows of an earlier run that were not selected now."""
    earlier = read_stored()["figures"] if os.environ.get("ONLY") and FILE.exists() else []
    new = [figure._asdict() | {"verdict": row(figure)[-1]} for figure in figures]
    order = [name for names in MODULES.values() for name in names]
    rows = sorted([f for f in earlier if not chosen(f["name"])] + new, key=lambda f: order.index(f["name"]))
    return {**about(), "figures": rows}


def read_stored() -> dict[str, Any]:
    """The content of bench.json."""
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def figures_of(content: dict[str, Any]) -> list[Figure]:
    """The figures in bench.json."""
    return [Figure(**{field: f[field] for field in Figure._fields}) for f in content["figures"]]


def show(content: dict[str, Any], figures: Iterable[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(title=f"{content['cpu']}\n{content['versions']}", title_justify="left")
    for head in ("", "figure", "median", "range", "goal", "verdict"):
        table.add_column(head, overflow="fold", ratio=1 if head == "figure" else None)
    for figure in figures:
        cells = row(figure)
        style = {"missed": "red", "reached": "green"}.get(cells[-1], "")
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]" if style else cells[-1])
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def page(text: str, content: dict[str, Any]) -> str:
    """docs/performance.md with these figures in its tables."""
    figures = figures_of(content)
    parts = [figure for figure in figures if figure.name == PARTS]
    measured = [figure for figure in figures if figure.values and figure not in parts]
    heading = f"Measured on {content['date']} at {content['commit']}: {content['cpu']}. {content['versions']}.\n\n"
    blocks = {
        "table": heading
        + _markdown(("", "figure", "median", "range", "goal"), [_with_verdict(*row(figure)) for figure in measured]),
        "parts": _by_stream(parts),
        "plan": _markdown(("stream", "events a second", "learners a broker", "learners a Redis"), plan(parts)),
    }
    for mark, block in blocks.items():
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


def _with_verdict(*cells: str) -> list[str]:
    """The cells of a figure, with `missed` after its goal instead of a verdict of its own."""
    return [*cells[:4], f"{cells[4]}, missed" if cells[5] == "missed" else cells[4]]


def _costs(parts: Iterable[Figure]) -> dict[str, dict[str, float]]:
    """The median of each part, by stream."""
    costs: dict[str, dict[str, float]] = {}
    for figure in parts:
        stream, _, part = figure.what.partition(": ")
        costs.setdefault(stream, {})[part] = median(figure.values)
    return costs


def _by_stream(parts: Iterable[Figure]) -> str:
    """A table with a row for each part and a column for each stream."""
    costs = _costs(parts)
    names = next(iter(costs.values()), {})
    return _markdown(("part", *costs), [[name, *(_number(cost[name]) for cost in costs.values())] for name in names])


def plan(parts: Iterable[Figure]) -> list[list[str]]:
    """By stream, the events a second of one learner, and the learners that a core of a broker or of Redis can serve."""
    return [
        [stream, f"{1e6 / cost[WHOLE]:,.0f}", *(_served(cost[WHOLE], cost[server]) for server in (BROKER, REDIS))]
        for stream, cost in _costs(parts).items()
    ]


def _served(learner: float, server: float) -> str:
    return f"{learner / server:,.0f}" if server else "more than shows"  # its clock has ticks of 10 ms


def _markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(cells) for cells in (head, *rows)]
    return "\n".join([f"| {lines[0]} |", "|---" * len(head) + "|", *(f"| {line} |" for line in lines[1:])])


def main() -> int:
    """Measure and print; the exit code is 1 only if something could not be measured."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(), read_stored()))
        return 0

    def keep(figures: list[Figure]) -> None:
        FILE.write_text(json.dumps(merge(figures), indent=1, ensure_ascii=False) + "\n")

    figures, complete = measure(keep)
    show(read_stored(), figures)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
