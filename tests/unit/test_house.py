"""The house's own rules: imports go in one direction, and compiled code is kept.

That learning needs no sockets, tasks or clocks is shown by tests/simulation/test_simulation.py.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
ROWS = [
    "errors", "text", "credentials", "monitoring", "learning", "snapshots", "streaming", "settings", "serving",
    "embedded", "tools", "process", "cli", "__main__",
]  # fmt: skip


def _imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere, and the names that it imports from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        yield from (name for name in names if name.startswith("service."))


def test_a_room_imports_only_rooms_above_it() -> None:
    """Monitoring imports no room at all."""
    for path in SERVICE.rglob("*.py"):
        room = path.relative_to(SERVICE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        allowed = ROWS[: ROWS.index(room) + 1] if room != "monitoring" else [room]
        for imported in {name.split(".")[1] for name in _imports(path)}:
            assert imported in allowed or imported not in ROWS, f"{path} imports {imported}, which is below {room}"


def test_modules_import_in_one_direction() -> None:
    modules = {".".join(path.relative_to(SERVICE.parent).with_suffix("").parts): path for path in SERVICE.rglob("*.py")}
    graph = {name: modules.keys() & set(_imports(path)) for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_private_name_of_aiokafka_is_used() -> None:
    """A name with an underscore that is not defined in streaming belongs to aiokafka, which may change it any day."""
    for path in (SERVICE / "streaming").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = [
            alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
        ]
        assert not [name for name in imported if re.search(r"(^|\.)_[a-zA-Z]", name)], path
        attributes = [node for node in nodes if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr)]
        own_names = {
            node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        }
        own_names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert {node.attr for node in attributes} <= own_names, path


def _python(code: str, cwd: Path = SERVICE.parent, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment | variables)


WARM_UP = """
import gc
from itertools import product
from numba.core.registry import CPUDispatcher
from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import PartitionId, Records
from service.process import service
from service.serving.predictions import V1Request
from service.serving.scoring import freeze, predict_large
from tests.checks import restored
service.warm_up()
dispatchers = [kernel for kernel in gc.get_objects() if isinstance(kernel, CPUDispatcher)]
kernels = [kernel for kernel in dispatchers if kernel.py_func.__module__.startswith("service.")]
warm = [len(kernel.signatures) for kernel in kernels]
named, listed = '{"a":1,"b":2}', "[1,2]"
kinds = (
    (Identity(), named),
    (Identity(average=True, start="random:1"), named),
    (Identity(features="hashed", bits=8, rule="error-correction", outputs="bipolar"), named),
    (Identity(features="positional", dimension=2, rule="lms", eta=0.1), listed),
    (Identity(scale="standard"), named),
    (Identity(scale="standard", features="hashed", bits=8), named),
    (Identity(scale="standard", clip=2.0), named),
    (Identity(labels=(0, 1, 2, 3), average="recent", half_life=1), named),
    (Identity(labels=(0, 1, 2), rule="lms", eta=0.1, features="positional", dimension=2, scale="standard"), listed),
)
P0 = PartitionId(0)
for (identity, features), compiled in product(kinds, (True, False)):
    use_compiled_reader(compiled)
    learner = Learner(identity)
    learner.begin({P0: 0})
    for i in range(4):
        event = f'{{"features":{features},"label":{i % 2},"more":[]}}'
        learner.apply(Records.from_values(2 * i, [event.encode(), b"no event"]))
        learner.main.begin_segment()
        learner = restored(learner) if i == 2 else learner
    body = f'{{"instances":[{",".join(["{" + chr(34) + "features" + chr(34) + ":" + features + "}"] * 9)}]}}'
    request = V1Request(body.encode(), 9)
    predict_large(freeze(learner, learner.main), request, explain=True, top=1)
    predict_large(freeze(learner, learner.main), request, explain=False, top=1)
assert sum(warm) >= 6, (kernels, warm)
print([k for k, n in zip(kernels, warm) if len(k.signatures) != n])
"""


def test_nothing_is_compiled_after_the_start() -> None:
    """Otherwise the first event or request of its kind would hold the event loop for seconds."""
    result = _python(WARM_UP)
    assert result.stdout == "[]\n", result.stdout + result.stderr


CACHE_STATS = """
from service.learning.kernel import kernel
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import PartitionId, Records
learner = Learner(Identity(features="positional", dimension=1))
P0 = PartitionId(0)
learner.begin({P0: 0})
learner.apply(Records.from_values(0, [b'{"features":[2],"label":1}']))
stats = kernel._learn.stats
print(learner.score([1.0], learner.main)[0], sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_compiled_code_is_kept_until_the_code_that_it_calls_changes(tmp_path: Path) -> None:
    """numba itself looks at the kernel's own file, not at `rules`, which the kernel calls."""
    copy = tmp_path / "service"
    shutil.copytree(SERVICE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    rules = (copy / "learning" / "rules.py").read_text()
    for factor, expected in (("", "3.0 0 1"), ("2 * ", "6.0 0 1"), ("", "3.0 1 0")):
        (copy / "learning" / "rules.py").write_text(rules.replace("return rate * y if", f"return {factor}rate * y if"))
        result = _python(CACHE_STATS, tmp_path)
        assert result.stdout == f"{expected}\n", (factor, result.stderr)


ONE_KERNEL = """
import numpy as np
from service.learning.classifier import majority_baseline
majority_baseline(np.zeros(2, np.int64), np.zeros(1, np.intp))
print(sum(majority_baseline.stats.cache_hits.values()), sum(majority_baseline.stats.cache_misses.values()))
"""
READ_ONLY = """
import tempfile
make = tempfile.TemporaryFile
def refuse(*arguments, dir, **more):
    if str(dir).startswith({folder!r}):
        raise OSError(30, "Read-only file system")
    return make(*arguments, dir=dir, **more)
tempfile.TemporaryFile = refuse
"""
"""A folder that cannot be written to, for root too."""


@pytest.mark.nightly
def test_compiled_code_of_a_read_only_folder_is_copied_to_a_private_one(tmp_path: Path) -> None:
    """An image with a read-only root is such a case. Code in a folder that others can write to is not loaded."""
    place, temporary = tmp_path / "place", tmp_path / "tmp"
    temporary.mkdir()
    environment = {"NUMBA_CACHE_DIR": str(place), "TMPDIR": str(temporary)}
    assert _python(ONE_KERNEL, SERVICE.parent, **environment).stdout == "0 1\n"
    code = READ_ONLY.format(folder=str(place)) + ONE_KERNEL
    result = _python(code, SERVICE.parent, **environment)
    assert result.stdout == "1 0\n", result.stderr
    (private,) = temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    private.chmod(0o777)
    result = _python(code, SERVICE.parent, **environment)
    assert result.stdout == "0 1\n", result.stderr
