"""The house's own rules: imports go one way, and learning opens nothing."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "service"
ROWS = [
    "errors", "credentials", "monitoring", "learning", "snapshots", "streaming", "serving", "embedded",
    "settings", "tools", "process", "cli", "__main__",
]  # fmt: skip


def _imports(path: Path) -> Iterator[str]:
    """The rooms that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        yield from (name.split(".")[1] for name in names if name.startswith("service."))


def test_a_room_imports_only_rooms_above_it() -> None:
    for path in SERVICE.rglob("*.py"):
        room = path.relative_to(SERVICE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for imported in _imports(path):
            if imported in ROWS and imported != room:
                assert ROWS.index(imported) < ROWS.index(room), f"{path} imports {imported}, which is below {room}"


def test_a_room_is_entered_by_what_it_offers() -> None:
    """`__all__` of a room names its files that others may import: those, and each of them by somebody."""
    taken = set()
    for path in SERVICE.rglob("*.py"):
        room = path.relative_to(SERVICE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("service."):
                continue
            _, other, *file = (node.module or "").split(".")
            names = [alias.name for alias in node.names]
            if other != room and (SERVICE / other).is_dir():
                assert not any(name.startswith("_") for name in names), f"{path}: {names}"
                taken |= {(other, name) for name in file[:1] or names}
    offered = {
        (path.parent.name, name)
        for path in SERVICE.glob("*/__init__.py")
        for name in getattr(importlib.import_module(f"service.{path.parent.name}"), "__all__", ["main"])
    }
    assert taken == offered


def test_monitoring_imports_no_room() -> None:
    for path in (SERVICE / "monitoring").rglob("*.py"):
        assert set(_imports(path)) <= {"monitoring"}, path


def test_clients_of_kafka_are_made_in_one_place() -> None:
    """So that how to reach it is one value."""
    made = [p for p in SERVICE.rglob("*.py") if re.search(r"AIOKafka(Consumer|Producer|AdminClient)\(", p.read_text())]
    assert made == [SERVICE / "streaming" / "cluster.py"]


def test_every_room_is_in_the_table() -> None:
    rooms = {p.name.removesuffix(".py") for p in SERVICE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(ROWS)


def test_no_file_is_two_ideas() -> None:
    for path in SERVICE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path


LEARNING = """
import sys
import mmh3, msgspec, numba, numpy, numba.core.caching
for name in ("socket", "asyncio", "time", "_socket", "select"):
    sys.modules[name] = None  # an import of it raises from here on
from service.learning.identity import Identity
from service.learning.learner import Learner
for identity, event in (
    (Identity(), b'{"features":{"a":1},"label":1}'),
    (Identity(features="hashed", bits=8), b'{"features":{"a":1},"label":1}'),
    (Identity(features="positional", dimension=1), b'{"features":[1],"label":1}'),
):
    learner = Learner(identity)
    learner.begin({0: 0})
    learner.apply(0, 0, [event, b"no event"])
    assert learner.counts.events == 1 and learner.counts.rejected == {"not-json": 1}
    assert learner.score({"a": 1.0} if identity.dimension is None else [1.0]) == (2.0, 0)
print("learned")
"""


def _python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_learning_works_where_sockets_tasks_and_clocks_are_refused() -> None:
    done = _python(LEARNING)
    assert done.stdout == "learned\n", done.stderr


WARM = """
import gc
from itertools import product
from numba.core.registry import CPUDispatcher
from service.learning.events.batch import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.process import service
from service.serving import predictor
from tests.checks import restored
service.warm_up()
found = [kernel for kernel in gc.get_objects() if isinstance(kernel, CPUDispatcher)]
kernels = [kernel for kernel in found if kernel.py_func.__module__.startswith("service.")]
warm = [len(kernel.signatures) for kernel in kernels]
named, listed = '{"a":1,"b":2}', "[1,2]"
kinds = (
    (Identity(), named),
    (Identity(average=True, start="random:1"), named),
    (Identity(features="hashed", bits=8, rule="error-correction", outputs="bipolar"), named),
    (Identity(features="positional", dimension=2, rule="lms", eta=0.1), listed),
    (Identity(scale="standard"), named),
    (Identity(scale="standard", features="hashed", bits=8), named),
    (Identity(labels=(0, 1, 2, 3), average="recent", half_life=1), named),
    (Identity(labels=(0, 1, 2), rule="lms", eta=0.1, features="positional", dimension=2, scale="standard"), listed),
)
for (identity, features), compiled in product(kinds, (True, False)):
    use_compiled_reader(compiled)
    learner = Learner(identity)
    learner.begin({0: 0})
    for i in range(4):
        event = f'{{"features":{features},"label":{i % 2},"more":[]}}'
        learner.apply(0, 2 * i, [event.encode(), b"no event"])
        learner.begin_stretch()
        learner = restored(learner) if i == 2 else learner
    body = f'{{"instances":[{",".join(["{" + chr(34) + "features" + chr(34) + ":" + features + "}"] * 9)}]}}'
    predictor.answer_large(predictor.moment(learner), body.encode(), 9, explain=True)
    predictor.answer_large(predictor.moment(learner), body.encode(), 9, explain=False)
assert sum(warm) >= 6, (kernels, warm)
print([k for k, n in zip(kernels, warm) if len(k.signatures) != n])
"""


def test_nothing_is_compiled_after_the_start() -> None:
    """Or the event loop would stand still for it, at the first event or request of its kind."""
    done = _python(WARM)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_learning_works_where_no_compiled_code_can_be_kept() -> None:
    """A read-only file system and a user without a home: numba finds no place for its cache."""
    nowhere = "import numba.core.caching as c\nc.CacheImpl._locator_classes = []\n"
    done = _python(nowhere + LEARNING)
    assert done.stdout == "learned\n", done.stderr


def test_compiled_code_that_is_kept_is_of_what_it_calls_too(tmp_path: Path) -> None:
    head = "from service.learning.compiled import compiled\n"
    step, loop = tmp_path / "step.py", tmp_path / "loop.py"
    loop.write_text(f"{head}import step\n@compiled\ndef run(x): return step.step(x) + 1\n")
    for factor, kept in ((2, 0), (2, 1), (3, 0)):
        step.write_text(f"{head}@compiled\ndef step(x): return {factor} * x\n") if not kept else None
        done = _python(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import loop\n"
            "print(loop.run(10), sum(loop.run.stats.cache_hits.values()))"
        )
        assert done.stdout == f"{10 * factor + 1} {kept}\n", done.stderr


def test_compiled_code_that_was_brought_is_loaded_where_nothing_can_be_written(tmp_path: Path) -> None:
    """An image's: its files have other times than when they were compiled, and its file system is read-only."""
    loop = tmp_path / "loop.py"
    loop.write_text("from service.learning.compiled import compiled\n@compiled\ndef run(x): return x + 1\n")
    code = (
        f"import sys, numba.core.caching as c; sys.path.insert(0, {str(tmp_path)!r})\n"
        "def refuse(**_): raise OSError(30, 'Read-only file system')\n"
        "if len(sys.argv) > 1: c.tempfile.TemporaryFile = refuse\n"
        "import loop\n"
        "print(loop.run(10), loop.run(0.5), sum(loop.run.stats.cache_hits.values()))"
    )
    half = code.replace(" loop.run(0.5),", "")
    for written, expected in ((half, "11 0"), (f"import sys; sys.argv.append('')\n{code}", "11 1.5 1")):
        done = _python(written)
        assert done.stdout == f"{expected}\n", done.stderr
        os.utime(loop, (0, 0))


def test_the_refusal_refuses() -> None:
    """The test above can fail: a module that needs them does."""
    done = _python(LEARNING + "\nimport service.streaming.group")
    assert done.returncode != 0
    assert "learned" in done.stdout
