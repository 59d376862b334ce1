"""`perceptron fit`: finite data, many passes; how it ended, the evidence, and the bounds beside the updates made.

The result goes to standard output, and behind it the passes to standard error; a terminal sees them as they come.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import typer
from rich.console import Console

from service.errors import ConfigurationError, DataError
from service.learning import bounds, passes, weights
from service.learning.identity import Identity, Label
from service.learning.kernel import Vector
from service.learning.passes import Bounded, Data, Pass
from service.learning.separable import ZERO, Evidence, separate
from service.settings.load import Settings, model_settings
from service.settings.model import ModelSettings
from service.settings.words import on_a_line
from service.streaming.kafka.cluster import Cluster
from service.streaming.records import value_of
from service.tools import files
from service.tools.formats import Events, format_of, raise_bad_line
from service.tools.profile import plain, shown

SHOWN = 10
BAR = 30
FEW = 5
"""Of the weights of each of several labels."""
EVERY_PASS = 20
"""Of later passes the last alone is shown; --json has all."""
TRACED = 10_000
"""Numbers a pass that --trace prints at most."""
PROGRAM, FINAL = "the linear program's", "the final weights"


class Source(NamedTuple):
    """Record values in their order, each with its place, such as `line 2`; and what all of it is called."""

    name: str
    places: list[str]
    values: list[bytes | None]


class Wanted(NamedTuple):
    """How to fit."""

    tolerance: int
    max_passes: int
    batch: bool
    trace: bool


class Result(NamedTuple):
    """All that is said in the end."""

    ended: str
    """`converged`, `tolerated`, `settled` (the loss), or `max-passes`."""
    passes: list[Pass]
    evidence: Evidence | None
    bounded: Bounded | None
    no_bound: str | None


def settings_of(settings: Settings, model: str | None, flags: dict[str, Any], wanted: Wanted) -> ModelSettings:
    """A model's settings under the flags; batch descent is the linear unit's. Raises ConfigurationError."""
    if wanted.batch:
        if flags.setdefault("rule", "lms") != "lms":
            raise ConfigurationError("--batch is gradient descent of the linear unit: it goes with --rule lms alone")
        if wanted.tolerance:
            raise ConfigurationError("--batch ends when its loss falls no more: it takes no --tolerance")
    own = model_settings(settings, model, flags)
    if own.rule == "threshold-unit":
        raise ConfigurationError("a threshold-unit never learns: there is nothing to fit")
    if wanted.batch and own.labels and len(own.labels) > 2:
        raise ConfigurationError(f"--batch is of two labels, and there are {len(own.labels):,}: leave it out")
    return own


def source_of(settings: Settings, own: ModelSettings, file: str | None, topic: str | None, **form: Any) -> Source:
    """The events of a file, whose first bad line raises DataError, or all that a topic holds."""
    if file is not None and topic is None:
        identity = own.identity()
        events = Events(file, format_of(file, identity, key=None, **form), identity, keyed=False, check=True)
        lines = list(events.lines(raise_bad_line))
        return Source(events.name, [f"line {line.number}" for line in lines], [line.value for line in lines])
    if file is not None or topic is None:
        raise ConfigurationError("fit: name a FILE, or a topic with --topic TOPIC, and not both")
    records = asyncio.run(_read_topic(settings.kafka.cluster, topic))
    return Source(f"topic {topic}", [place for place, _ in records], [value for _, value in records])


async def _read_topic(cluster: Cluster, topic: str) -> list[tuple[str, bytes | None]]:
    missing = ConfigurationError(f"topic {topic} does not exist at {cluster.bootstrap}")
    found = [(p, r) async for p, records in cluster.read_whole(topic, missing) for r in records]
    return [(f"{p}-{r.offset}", value_of(r)) for p, r in found]


def fit(source: Source, own: ModelSettings, wanted: Wanted, output: str | None, as_json: bool) -> int:
    """Fit, print and write; returns the exit code: 4 where a bound does not hold, which no data can bring about."""
    identity = own.identity()
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise ConfigurationError(f"{output}: there is no such folder")
    data = passes.gather(identity, source.values, own.start_weights())
    rejected = Counter(reject.reason for reject in data.rejects)
    if not len(data.batch.labels):
        aside = f" ({_reasons(rejected)})" if rejected else ""
        raise DataError(f"{source.name}: no event to learn{aside}")
    if wanted.trace and len(data.batch.labels) * data.start.size > TRACED:
        raise ConfigurationError(f"--trace is for small data: at most {TRACED:,} numbers, events times weights")
    if wanted.batch and own.eta is None:
        identity = msgspec.structs.replace(identity, eta=passes.stable_eta(data.batch))
    w = data.start.copy()
    result = _learn(identity, data, w, wanted)
    labels = list(identity.labels or ()) if identity.multiclass else []
    counts = {
        "events": len(data.batch.labels),
        "passes": len(result.passes),
        "mistakes": sum(one.mistakes for one in result.passes),
        "updates": sum(one.updates for one in result.passes),
        "rejected": dict(rejected),
    }
    fitted = weights.as_json(identity, data.columns.names, w, counts, {})
    if output is not None:
        files.write(output, msgspec.json.encode(fitted) + b"\n")
        typer.echo(f"weights written to {output}", err=True)
    places = [source.places[i] for i in data.batch.records]
    if as_json:
        typer.echo(json.dumps(_json(result, data, places, labels, fitted), ensure_ascii=False))
    else:
        _print(result, data, places, labels, w, rejected, wanted)
    _show(result.passes, len(places))
    return 0 if result.bounded is None or result.bounded.held else 4


def _learn(identity: Identity, data: Data, w: Vector, wanted: Wanted) -> Result:
    done: list[Pass] = []
    if wanted.batch:
        running = passes.descend(identity, data.batch, w, max_passes=wanted.max_passes, trace=wanted.trace)
    else:
        running = passes.fit(
            identity, data.batch, w, tolerance=wanted.tolerance, max_passes=wanted.max_passes, trace=wanted.trace
        )
    with Console(stderr=True).status("the first pass") as status:  # on a terminal alone
        for one in running:
            done.append(one)
            status.update(f"pass {one.number}: {one.mistakes:,} mistakes")
    last = done[-1]
    if wanted.batch:
        ended = "max-passes" if last.updates else "settled"
    elif last.errors > wanted.tolerance:
        ended = "max-passes"
    else:
        ended = "tolerated" if last.errors else "converged"
    no_bound = bounds.why_none(identity, True)
    evidence = None
    if last.errors or no_bound is None:
        try:
            evidence = separate(data.batch, w.shape, identity.classes)
        except ImportError:
            evidence = Evidence(unknown="pip install 'perceptron-service[fit]' for the linear program that tells")
    bounded = None
    if no_bound is None:
        candidates = {FINAL: w}
        if evidence is not None and evidence.vector is not None:
            candidates[PROGRAM] = evidence.vector
        norms = np.concatenate([one.squared_norms for one in done])
        bounded = passes.bounded(identity, data, norms, candidates)
    return Result(ended, done, evidence, bounded, no_bound)


def _show(passes: list[Pass], events: int) -> None:
    """The first passes and the last on standard error, a line each with a bar: mistakes, of the events."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for one in passes[:EVERY_PASS] + passes[EVERY_PASS:][-1:]:
        bar = "█" * math.ceil(BAR * one.mistakes / events)
        loss = f"loss {one.loss:<12.6g} " if one.loss else " " * 18
        console.print(f"pass {one.number:>4}  mistakes {one.mistakes:>7,}  {loss}{bar}")


def _print(
    result: Result,
    data: Data,
    places: list[str],
    labels: list[Label],
    w: Vector,
    rejected: Counter[str],
    wanted: Wanted,
) -> None:
    typer.echo(_ending(result, wanted))
    events = len(data.batch.labels)
    count = sum(rejected.values())
    aside = f", {count} record{'s' * (count != 1)} set aside ({_reasons(rejected)})" if rejected else ""
    of = f" of {len(labels):,} labels" if labels else ""
    typer.echo(f"data     {events:,} event{'s' * (events != 1)}{of}, {len(data.columns) - 1:,} features{aside}")
    for label, row in zip(labels[:SHOWN], w.T, strict=False):
        typer.echo(f"weights  {plain(shown(label))}: {_largest(row, data, FEW)}")
    if not labels:
        typer.echo(f"weights  {_largest(w, data, SHOWN)}")
    if len(labels) > SHOWN:
        typer.echo(f"         and {len(labels) - SHOWN:,} labels more: -o and --json have them all")
    evidence = result.evidence
    if evidence and evidence.combination:
        terms = [
            f"{part:.6g}·z({place}{'' if other is None else f', {plain(shown(other))}'})"
            for place, other, part in _combined(evidence.combination[:SHOWN], data, places, labels)
        ]
        hidden = len(evidence.combination) - len(terms)
        terms += [f"{hidden} more"] if hidden else []
        z = "z(·, r) = (e_y - e_r) ⊗ (1, x)" if labels else "z = y·(1, x)"
        typer.echo(f"evidence {' + '.join(terms)} = 0 (±{ZERO:g}), with {z}: no w has w·z > 0 for all of them")
    elif evidence and evidence.vector is not None and result.ended != "converged":
        margin = float(passes.margins(data.batch, evidence.vector)[0].min())
        beyond = "w·z" if labels else "y·w·x"
        typer.echo(
            f"evidence a linear program finds w with {beyond} >= {margin:.6g} for every event and no weight times its "
            f"column's largest |value| beyond 1: the largest margin in that norm"
        )
    elif evidence and evidence.unknown:
        known = "it converged, so separable; the largest margin is unknown" if result.ended == "converged" else "none"
        typer.echo(f"evidence {known}: {evidence.unknown}")
    _print_bounds(result, bool(labels))
    for one in result.passes if wanted.trace else ():
        for place, after in zip(places if len(one.trace) == len(places) else ["all"], one.trace, strict=True):
            rows = " ".join(f"[{' '.join(f'{value:g}' for value in row)}]" for row in np.atleast_2d(after.T))
            typer.echo(f"pass {one.number}  {place}  {rows}")


def _largest(w: Vector, data: Data, count: int) -> str:
    """The bias and the largest of the other weights."""
    largest = np.argsort(-np.abs(w[1:]), kind="stable")[:count] + 1
    parts = [f"bias {w[0]:g}", *(f"{on_a_line(data.columns.name_of(int(c)))} {w[c]:g}" for c in sorted(largest))]
    more = f" and {len(w) - 1 - len(largest):,} smaller" if len(w) - 1 > len(largest) else ""
    return f"{', '.join(parts)}{more}"


def _combined(
    combination: list[tuple[int, float]], data: Data, places: list[str], labels: list[Label]
) -> Iterator[tuple[str, Label | None, float]]:
    """Of each vector of a combination its event's place, the label that it is set against, and its coefficient."""
    for i, part in combination:
        if labels:
            event, other = divmod(i, len(labels) - 1)
            yield places[event], labels[other + (other >= data.batch.labels[event])], part
        else:
            yield places[i], None, part


def _radius(b: Bounded, classes: bool) -> float:
    """R = max ‖(1, x)‖: Kesler's vectors, of classes, have it two times."""
    return math.sqrt(b.separation.squared_radius / (2.0 if classes else 1.0))


def _print_bounds(result: Result, classes: bool) -> None:
    b = result.bounded
    if b is None:
        if result.no_bound and not result.passes[-1].errors:
            typer.echo(f"bound    none: {result.no_bound}")
        return
    s = b.separation
    twice, beta = ("2·", "β² = 2·R²") if classes else ("", "β = R")
    made = f"{b.updates:,} update{'s' * (b.updates != 1)}"
    if b.novikoff is not None:
        typer.echo(
            f"bound    {made} <= {b.novikoff:.6g} = {twice}(R/γ)²·‖w_opt‖²: R = {_radius(b, classes):.6g}, "
            f"γ = {s.margin:.6g}, ‖w_opt‖ = {math.sqrt(s.squared_norm):.6g} (w_opt: {_vector(b)})"
        )
        low, high = s.sides(np.array([float(b.updates)]))
        typer.echo(
            f"norm     n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² {'held' if b.norms else 'BROKEN'} at "
            f"{'every update' if b.norms else 'an update'} (α = γ, {beta}, w0 = w_opt); at the last: "
            f"{low[0]:.6g} <= {_last_norm(result):.6g} <= {high[0]:.6g}"
        )
    typer.echo(
        f"Hu       {made} <= {b.hu:.6g} = D², D = ‖ω(0) - a·ω_opt‖, a = (β² + 1)/(2γ), ‖ω_opt‖ = 1"
        + (f" (w_opt: {_vector(b)})" if b.novikoff is None else "")
    )
    if not b.held:
        typer.echo("a bound does not hold: this program is wrong, please report it", err=True)


def _vector(b: Bounded) -> str:
    return f"{b.vector}, the smaller bound"


def _last_norm(result: Result) -> float:
    norms = [float(one.squared_norms[-1]) for one in result.passes if len(one.squared_norms)]
    return norms[-1] if norms else 0.0


def _ending(result: Result, wanted: Wanted) -> str:
    done, last = result.passes, result.passes[-1]
    made = sum(one.mistakes for one in done)
    after = f"{made:,} mistake{'s' * (made != 1)}"
    updates = sum(one.updates for one in done)
    if updates < made:  # the others were at s = 0, where the tie gave the right output
        after += f", {updates:,} of them updates"
    elif updates > made and result.no_bound is None:
        after += f" and {updates - made:,} update{'s' * (updates - made != 1)} within the margin"
    if result.ended == "converged":
        return f"converged in pass {last.number} after {after}"
    if result.ended == "tolerated":
        return (
            f"within tolerance in pass {last.number} after {after}: {last.errors:,} in it, tolerance {wanted.tolerance}"
        )
    if result.ended == "settled":
        return f"settled in pass {last.number}: E = {last.loss:.6g} falls no more, {last.mistakes:,} mistakes left"
    least = min(done, key=lambda one: one.mistakes)
    figures = (
        f"E = {last.loss:.6g} and still falling"
        if wanted.batch
        else f"{after}, {last.mistakes:,} in the last, {least.mistakes:,} at least (pass {least.number})"
    )
    evidence = result.evidence or Evidence()
    if evidence.combination:
        return f"not separable: {len(done)} passes made {figures}"
    known = "separable, but " if evidence.vector is not None else ""
    return f"{known}not converged in {len(done)} passes: {figures}; --max-passes allows more"


def _reasons(rejected: Counter[str]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in sorted(rejected.items()))


def _json(result: Result, data: Data, places: list[str], labels: list[Label], fitted: dict[str, Any]) -> dict[str, Any]:
    """All of it; of classes each vector is a row for each label, bias first."""
    evidence, b = result.evidence or Evidence(), result.bounded
    separable = True if b is not None or evidence.vector is not None or not result.passes[-1].errors else None
    passes_ = [
        {"pass": p.number, "mistakes": p.mistakes, "updates": p.updates, "errors": p.errors, "loss": p.loss}
        | ({"trace": [after.T.tolist() for after in p.trace]} if p.trace else {})
        for p in result.passes
    ]
    return {
        "ended": result.ended,
        "separable": False if evidence.combination else separable,
        "evidence": {
            "separating": None if evidence.vector is None else evidence.vector.T.tolist(),
            "combination": [
                {"event": place, "coefficient": part} | ({} if other is None else {"against": other})
                for place, other, part in _combined(evidence.combination or [], data, places, labels)
            ]
            or None,
            "residual": evidence.residual if evidence.combination else None,
            "unknown": evidence.unknown,
        },
        "bounds": None
        if b is None
        else {
            "updates": b.updates,
            "vector": b.vector,
            "radius": _radius(b, bool(labels)),
            "margin": b.separation.margin,
            "norm": math.sqrt(b.separation.squared_norm),
            "novikoff": b.novikoff,
            "hu": b.hu,
            "norms_between_their_sides": b.norms,
        },
        "passes": passes_,
        "weights": fitted,
    }
