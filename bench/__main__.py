"""`python -m bench`: measures, prints the table with its goals and keeps it as JSON in bench.json.

ONLY=P1 chooses rows, which then take the place of those of an earlier run. With `--write` nothing is measured: the
table and the cost of an event by parts in docs/performance.md become those of bench.json.
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
    PARTS: (PARTS,),
}
"""Which rows each has; it has `figures`, a list of `Figure`."""
PACKAGES = ("numpy", "numba", "msgspec", "aiokafka", "redis", "uvicorn", "fastapi")


def verdict(figure: Figure) -> str:
    """`reached` or `missed`, by the median; where there is no value, `not measured`."""
    if not figure.values:
        return "not measured"
    middle = median(figure.values)
    return "reached" if (middle >= figure.goal if figure.at_least else middle <= figure.goal) else "missed"


def row(figure: Figure) -> list[str]:
    """Its cells: row, what, median, range, goal, verdict."""
    if figure.name == PARTS:  # a share of a whole has no goal
        return [figure.name, figure.what, *_measured(figure), "", ""]
    goal = f"{'≥' if figure.at_least else '≤'} {_number(figure.goal)} {figure.unit}"
    return [figure.name, figure.what, *_measured(figure), goal, verdict(figure)]


def _measured(figure: Figure) -> tuple[str, str]:
    if not figure.values:
        return "-", "-"
    spread = f"{_number(min(figure.values))} to {_number(max(figure.values))}"
    return f"{_number(median(figure.values))} {figure.unit}", spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measured(keep: Callable[[list[Figure]], object]) -> tuple[list[Figure], bool]:
    """The figures that were asked for, and whether all could be measured; `keep` is told of those so far."""
    found, whole = list[Figure](), True
    for module, names in MODULES.items():
        if not any(map(chosen, names)):
            continue
        where, began = f"bench.{module}", time.monotonic()
        if find_spec(where) is None:
            print(f"{', '.join(names)}: there is no {where}", file=sys.stderr)
            whole = False
            continue
        try:
            found += [figure for figure in importlib.import_module(where).figures() if chosen(figure.name)]
        except Exception:
            traceback.print_exc()
            whole = False
        keep(found)
        print(f"{module}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found, whole


def about() -> dict[str, str]:
    """When, on what and with which versions."""
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


def kept(found: Iterable[Figure]) -> dict[str, Any]:
    """What bench.json is to have: these, and of a run before this one the rows that this one was not asked for."""
    before = stored()["figures"] if os.environ.get("ONLY") and FILE.exists() else []
    now = [figure._asdict() | {"verdict": row(figure)[-1]} for figure in found]
    order = [name for names in MODULES.values() for name in names]
    rows = sorted([f for f in before if not chosen(f["name"])] + now, key=lambda f: order.index(f["name"]))
    return {**about(), "figures": rows}


def stored() -> dict[str, Any]:
    """What bench.json has."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def figures_of(found: dict[str, Any]) -> list[Figure]:
    """The figures in bench.json."""
    return [Figure(**{field: f[field] for field in Figure._fields}) for f in found["figures"]]


def show(found: dict[str, Any], asked: Iterable[Figure]) -> None:
    """Print them."""
    table = Table(title=f"{found['cpu']}\n{found['versions']}", title_justify="left")
    for head in ("", "figure", "median", "range", "goal", "verdict"):
        table.add_column(head, overflow="fold", ratio=1 if head == "figure" else None)
    for figure in asked:
        cells = row(figure)
        style = {"missed": "red", "reached": "green"}.get(cells[-1], "")
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]" if style else cells[-1])
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def page(text: str, found: dict[str, Any]) -> str:
    """docs/performance.md with these figures in its tables."""
    figures = figures_of(found)
    parts = [figure for figure in figures if figure.name == PARTS]
    about_it = f"Measured on {found['date']} at {found['commit']}: {found['cpu']}. {found['versions']}.\n\n"
    blocks = {
        "table": about_it
        + _markdown(("", "figure", "median", "range", "goal", "verdict"), [row(f) for f in figures if f not in parts]),
        "parts": _markdown(("part", "median", "range"), [row(figure)[1:4] for figure in parts]),
        "plan": _markdown(("stream", "events a second", "learners a broker", "learners a Redis"), plan(parts)),
    }
    for mark, block in blocks.items():
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


def plan(parts: Iterable[Figure]) -> list[list[str]]:
    """By stream, what one learner learns a second, and how many of them a core of a broker and of Redis carry."""
    costs: dict[str, dict[str, float]] = {}
    for figure in parts:
        stream, _, part = figure.what.partition(": ")
        costs.setdefault(stream, {})[part] = median(figure.values)
    return [
        [stream, f"{1e6 / of[WHOLE]:,.0f}", *(_carried(of[WHOLE], of[server]) for server in (BROKER, REDIS))]
        for stream, of in costs.items()
    ]


def _carried(learner: float, server: float) -> str:
    return f"{learner / server:,.0f}" if server else "more than shows"  # a tick of its clock is 10 ms


def _markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(cells) for cells in (head, *rows)]
    return "\n".join([f"| {lines[0]} |", "|---" * len(head) + "|", *(f"| {line} |" for line in lines[1:])])


def main() -> int:
    """Measure and print; 1 where something could not be measured, be its figure reached or missed."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(), stored()))
        return 0

    def keep(found: list[Figure]) -> None:
        FILE.write_text(json.dumps(kept(found), indent=1, ensure_ascii=False) + "\n")

    found, whole = measured(keep)
    show(stored(), found)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
