"""P3: the kernel alone, on decoded batches, against a loop in C over the same batch.

Both run in one process in turns, by CPU seconds; each value is the minimum of some runs, since other programs add time
and never save any.
"""

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.events import FLIPPED, zipf
from bench.figure import Figure
from service.learning.columns.columns import Batch
from service.learning.identity import Identity
from service.learning.kernel import kernel
from service.learning.learner import Learner
from service.learning.options import Options
from tests.partitions import P0

ROUNDS, RUNS = 5, 5
EVENTS = 10_000
PRESENT = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
NONZEROS = 2_000_000
ALL = 10**6


def figures() -> list[Figure]:
    """The cost of the kernel, of averaging, bound and scaling, and of the C loop."""
    c = _compile_loop()
    with_x, dense, words = _dense(20, EVENTS), _dense(1000, 1000), _sparse()
    cases = {"20 features": with_x, "1,000 dense": dense, "about 100 of 10⁶ columns by Zipf's law": words}
    result = []
    costs: dict[str, list[float]] = {name: [] for name in cases}
    loop_ratios: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, batch in cases.items():
            kernel_seconds, loop_seconds = _minimum(lambda b=batch: _kernel(b)), _minimum(lambda b=batch: _loop(c, b))  # type: ignore[misc]
            costs[name].append(kernel_seconds)
            loop_ratios[name].append(kernel_seconds / loop_seconds)
    units = {"20 features": (EVENTS, "ns an event", 25.0), "1,000 dense": (len(dense.values), "ns a nonzero", 1.0)}
    for name, batch in cases.items():
        count, unit, goal = units.get(name, (len(batch.values), "ns a nonzero", 3.0))
        what = f"kernel, {name}"
        result.append(Figure("P3", what, [cost / count * 1e9 for cost in costs[name]], goal, False, unit))
    for name in cases:
        what = f"kernel against C, {name}"
        result.append(Figure("P3", what, loop_ratios[name], 1.3, False, "×"))
    for kind, batch, averaged, bounded in (("20 dense", with_x, 1.4, 1.7), ("sparse, Zipf", words, 1.8, 2.0)):
        mean, bound, scaled, clipped = zip(*(_extras(batch) for _ in range(ROUNDS)), strict=True)
        result.append(Figure("P3", f"with averaging against without, {kind}", list(mean), averaged, False, "×"))
        result.append(Figure("P3", f"with the live bound against without, {kind}", list(bound), bounded, False, "×"))
        result.append(Figure("P3", f"scaling, {kind}", list(scaled), 6.0, False, "ns a value"))
        added = [clip - plain for clip, plain in zip(clipped, scaled, strict=True)]
        result.append(Figure("P3", f"what clip adds to scaling, {kind}", added, 10.0, False, "ns a value"))
    return [*result, _flat(c)]


def _flat(c: Any) -> Figure:
    batches = [_dense(n, max(NONZEROS // n, 2)) for n in PRESENT]
    values = []
    for _ in range(ROUNDS):
        kernel_costs = [_minimum(lambda b=b: _kernel(b)) / len(b.values) for b in batches]  # type: ignore[misc]
        loop_costs = [_minimum(lambda b=b: _loop(c, b)) / len(b.values) for b in batches]  # type: ignore[misc]
        values.append(kernel_costs[-1] / kernel_costs[0] / (loop_costs[-1] / loop_costs[0]))
    what = "growth of a nonzero's cost from 10 to 10⁶ present columns, against that of C"
    return Figure("P3", what, values, 1.3, False, "×")


def _minimum(run: Callable[[], float]) -> float:
    return min(run() for _ in range(RUNS))


def _zeros(batch: Batch) -> kernel.Vector:
    return np.full(int(batch.columns.max()) + 1, 0.0)  # `zeros` would allocate the pages while the loop is measured


def _kernel(batch: Batch, average: bool = False, bound: bool = False) -> float:
    columns = int(batch.columns.max()) + 1
    state, identity = np.full((columns, 1 + average), 0.0), Identity(average=average)
    reference = np.full(columns, 1.0, np.float32) if bound else None
    began = time.process_time()
    kernel.learn(identity, state, batch, reach=0.0, reference=reference)
    return time.process_time() - began


def _loop(c: Any, batch: Batch, w: kernel.Vector | None = None) -> float:
    """Seconds of the loop in C, which changes `w` as the kernel does."""
    w, events = _zeros(batch) if w is None else w, len(batch.labels)
    out = [np.empty(events) for _ in range(3)] + [np.empty(events, np.int64)]
    arrays: list[NDArray[Any]] = [w, batch.starts, batch.columns, batch.values, batch.labels, batch.weights, *out]
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    began = time.process_time()
    c(ctypes.c_double(1.0), *pointers, ctypes.c_int64(events))
    return time.process_time() - began


def _extras(batch: Batch) -> tuple[float, float, float, float]:
    """Averaging and the bound as multiples of the kernel's cost; nanoseconds to scale a value, also with clip."""
    plain, mean = _minimum(lambda: _kernel(batch)), _minimum(lambda: _kernel(batch, average=True))
    referring = _minimum(lambda: _kernel(batch, bound=True))
    with_bound, without = (_minimum(lambda o=o: _observe(batch, o)) for o in (True, False))  # type: ignore[misc]
    scaled, clipped = (
        _minimum(lambda c=clip: _scale(batch, **c)) / len(batch.values) * 1e9  # type: ignore[misc]
        for clip in ({}, {"clip": 6.0})
    )
    return mean / plain, (referring + with_bound - without) / plain, scaled, clipped


def _learner(batch: Batch, bound: bool = False, **identity: Any) -> Learner:
    columns = int(batch.columns.max())
    learner = Learner(Identity(features="positional", dimension=columns, **identity), options=Options(bound=bound))
    learner.begin({P0: 0})
    return learner


def _observe(batch: Batch, bound: bool) -> float:
    learner = _learner(batch, bound)
    learner.main.count(*learner.main.learn(batch, lambda i: (P0, i)), len(learner.columns))
    learner.main.begin_segment()
    batch, learned = learner.main.learn(batch, lambda i: (P0, i))
    began = time.process_time()
    learner.main.count(batch, learned, len(learner.columns))
    return time.process_time() - began


def _scale(batch: Batch, **clip: Any) -> float:
    scaler = _learner(batch, scale="standard", **clip).scaler
    assert scaler
    scaler.make_room(int(batch.columns.max()) + 1)
    scaler.learn(batch)
    began = time.process_time()
    scaler.learn(batch)
    return time.process_time() - began


def _dense(columns: int, events: int) -> Batch:
    rng = np.random.default_rng(5)
    starts = np.arange(events + 1, dtype=np.uint64) * np.uint64(columns)
    return _batch(rng, starts, np.tile(np.arange(1, columns + 1, dtype=np.uint32), events))


def _sparse() -> Batch:
    rows = zipf(EVENTS)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.uint64)
    return _batch(np.random.default_rng(6), starts, np.concatenate(rows).astype(np.uint32) + np.uint32(1))


def _batch(rng: Any, starts: Any, columns: Any) -> Batch:
    values, u = rng.normal(size=len(columns)), rng.normal(size=int(columns.max()) + 1)
    labels = np.sign(np.add.reduceat(values * u[columns], starts[:-1].astype(np.int64)))
    labels[rng.random(len(labels)) < FLIPPED] *= -1.0
    events = len(labels)
    return Batch(starts, columns, values, labels, np.ones(events), range(events), numbers=np.ones(len(values), bool))


def _compile_loop() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "loop.so"
        source = Path(__file__).with_name("loop.c")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library)).learn
