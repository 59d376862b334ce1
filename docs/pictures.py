"""The pictures of model.md: `python docs/pictures.py` draws them, each for a light and a dark page.

Left, the boundary as it moves with each mistake, on data that a line separates. Right, the mistakes of a
separable stream under their bound. Every point comes from the service's own learner.
"""

import json
import math
import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from tests.partitions import P0

FOLDER = Path(__file__).parent
SEED = 7
INK = {"light": ("#1a1a1a", "#ffffff"), "dark": ("#e6e6e6", "#0d1117")}
NEGATIVE, POSITIVE, BOUND = "#d9822b", "#2b7bd9", "#8a8f98"


NAMES = ("clicks", "dwell", "scroll", "depth", "returns", "price", "stock", "age", "hour", "weekend")
BIAS, MARGIN = 0.25, 0.15


def separator() -> list[float]:
    """w_opt: a unit vector, bias first."""
    rng = random.Random(SEED)
    w = [BIAS] + [rng.gauss(0.0, 1.0) for _ in NAMES]
    norm = math.sqrt(sum(v * v for v in w))
    return [v / norm for v in w]


def examples(count: int) -> Iterator[bytes]:
    """Events of features in [-2, 2] with |w_opt·x| >= MARGIN, labelled by the vector of `separator`."""
    w = separator()
    rng = random.Random(SEED + 1)
    while count:
        x = [round(rng.uniform(-2.0, 2.0), 4) for _ in NAMES]
        s = w[0] + sum(a * b for a, b in zip(w[1:], x, strict=True))
        if abs(s) >= MARGIN:
            count -= 1
            event = {"features": dict(zip(NAMES, x, strict=True)), "label": 1 if s > 0 else -1}
            yield json.dumps(event).encode()


def boundary(axes: Any, ink: str) -> None:
    """Draw clouds, and the line w·x = 0 after each update, in passes until none is needed. Older lines are fainter."""
    rng = random.Random(SEED)
    points: list[tuple[list[float], int]] = []
    while len(points) < 60:
        x = [rng.uniform(-2, 2), rng.uniform(-2, 2)]
        s = 0.4 + 1.2 * x[0] - 0.9 * x[1]
        if abs(s) > 0.35:
            points.append((x, 1 if s > 0 else -1))
    learner = Learner(Identity(features="positional", dimension=2, eta=0.5))
    learner.begin({P0: 0})
    lines: list[Any] = []
    offset = 0
    converged = False
    while not converged:
        converged = True
        for x, label in points:
            updates_before = learner.main.counts.updates
            learner.apply(Records.from_values(offset, [json.dumps({"features": x, "label": label}).encode()]))
            offset += 1
            if learner.main.counts.updates > updates_before:
                lines.append(learner.main.weights.copy())
                converged = False
    for sign, marker, color in ((-1, "o", NEGATIVE), (1, "^", POSITIVE)):
        xs = np.array([x for x, label in points if label == sign])
        axes.scatter(xs[:, 0], xs[:, 1], s=22, marker=marker, color=color, linewidths=0)
    across = np.array([-2.2, 2.2])
    for i, w in enumerate(lines):
        if w[2]:
            is_last = i == len(lines) - 1
            fade = 1.0 if is_last else 0.12 + 0.5 * i / len(lines)
            axes.plot(across, -(w[0] + w[1] * across) / w[2], color=ink, alpha=fade, linewidth=2.0 if is_last else 1.0)
    axes.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), xticks=[], yticks=[], aspect="equal")
    axes.set_title(f"the boundary after each of {len(lines)} mistakes", color=ink, fontsize=11)


@cache
def history() -> tuple[list[int], list[int], list[float]]:
    """For a separable stream: numbers of events, and the mistakes and the live bound after each of them."""
    intercept, *coef = separator()
    learner = Learner(Identity(), options=Options(reference=WeightsFile(coef, intercept, list(NAMES))))
    learner.begin({P0: 0})
    raws = list(examples(40_000))
    events, mistakes, bounds = [*range(1, 200), *range(200, 40_001, 200)], list[int](), list[float]()
    for start, end in pairwise([0, *events]):
        learner.apply(Records.from_values(start, raws[start:end]))
        mistakes.append(learner.main.counts.updates)
        bounds.append(learner.main.observations.bound[0] or 0)
    return events, mistakes, bounds


def bound(axes: Any, ink: str) -> None:
    """Draw the mistakes of a separable stream and the live bound, over events, on a logarithmic scale."""
    events, mistakes, bounds = history()
    axes.plot(events, bounds, color=BOUND, linewidth=2.0)
    axes.plot(events, mistakes, color=POSITIVE, linewidth=2.0)
    axes.set_yscale("log")
    axes.set(
        xlim=(0, 40_000), ylim=(0.8, 4000), xticks=[0, 20_000, 40_000], xticklabels=["0", "20,000", "40,000 events"]
    )
    axes.annotate(f"their bound: {bounds[-1]:,}", (39_000, bounds[-1] * 1.2), color=ink, ha="right", fontsize=10)
    axes.annotate(f"mistakes: {mistakes[-1]}", (39_000, mistakes[-1] * 1.2), color=ink, ha="right", fontsize=10)
    axes.set_title("mistakes under the theorem's bound", color=ink, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=ink, which="both", labelsize=9)
    for spine in axes.spines.values():
        spine.set_color(BOUND)


def draw() -> None:
    """Write model-light.svg and model-dark.svg; the bytes are always the same."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "model", "svg.fonttype": "path", "font.family": "DejaVu Sans"})
    from matplotlib import pyplot as plt

    for theme, (ink, paper) in INK.items():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.0), width_ratios=(4, 5), facecolor=paper)
        for axes in (left, right):
            axes.set_facecolor(paper)
        boundary(left, ink)
        for spine in left.spines.values():
            spine.set_color(BOUND)
        bound(right, ink)
        figure.tight_layout()
        figure.savefig(FOLDER / f"model-{theme}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


if __name__ == "__main__":
    draw()
