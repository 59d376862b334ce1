"""`perceptron fit`: many passes over finite data. It prints how they ended, with evidence and bounds of the updates.

The passes go to standard error as they come, the result to standard output.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import typer

from service.errors import ConfigurationError, DataError
from service.learning import weights_file
from service.learning.evaluation import mistake_bound
from service.learning.finite import batch_training
from service.learning.finite.batch_training import BoundCheck, Data, Pass
from service.learning.finite.separability import ZERO_TOLERANCE, Certificate, separate
from service.learning.identity import Identity, Label
from service.learning.kernel.kernel import Vector
from service.settings.load import Settings, override_model_settings
from service.settings.model import ModelSettings
from service.streaming.kafka.cluster import Cluster
from service.text import printable, quantity, short_json
from service.tools.files import Events, FormatName, check_output, format_of, raise_bad_line, write_atomically
from service.tools.suggest.sample import join_values

MAX_LISTED = 10
"""Weights, labels, and terms of a combination that are printed; --json has all."""
MAX_PRINTED_PASSES = 20
"""The first passes, which are all printed; after them each hundredth is."""


class TrainingFile(NamedTuple):
    """Record values in their order, each with its place, such as `line 2`; and the name of their file or topic."""

    name: str
    places: list[str]
    values: Sequence[bytes | None]


class FitOptions(NamedTuple):
    """The options of `perceptron fit` that are not settings."""

    tolerance: int
    max_passes: int
    batch: bool
    trace: bool


class Result(NamedTuple):
    """The learned weights, and how learning ended."""

    data: Data
    places: list[str]
    """The place of each event."""
    labels: list[Label]
    """Empty with two labels, which share one vector of weights."""
    w: Vector
    passes: list[Pass]
    ended: str
    """`converged`, `tolerated`, `settled` (the loss), or `max-passes`."""
    evidence: Certificate
    bounded: BoundCheck | None
    no_bound: str | None
    """Why the rule has no bound, if it has none."""

    @property
    def totals(self) -> dict[str, int]:
        """The mistakes and the updates of all passes."""
        return {name: sum(getattr(each, name) for each in self.passes) for name in ("mistakes", "updates")}


def fit_settings(settings: Settings, model: str | None, flags: dict[str, Any], options: FitOptions) -> ModelSettings:
    """The settings of a model, overridden by flags; --batch sets the rule lms. Raises ConfigurationError."""
    own = override_model_settings(settings, model, flags | {"rule": "lms"} if options.batch else flags)
    if options.batch and own.labels and len(own.labels) > 2:
        raise ConfigurationError(f"--batch takes two labels, and there are {len(own.labels):,}: leave it out")
    return own


def file_source(file: str, identity: Identity, form: FormatName | None, label: str | None) -> TrainingFile:
    """The events of a file; raises DataError at the first bad line."""
    events = Events(file, format_of(file, identity, name=form, label=label, key=None), identity, check=True)
    lines = list(events.lines(raise_bad_line))
    return TrainingFile(events.name, [f"line {line.number}" for line in lines], [line.value for line in lines])


async def topic_source(cluster: Cluster, topic: str) -> TrainingFile:
    """All records that a topic has now; raises ConfigurationError if there is no such topic, and DependencyError."""
    missing = ConfigurationError(f"topic {topic} does not exist at {cluster.bootstrap}")
    parts = [records async for _, records in cluster.read_whole(topic, missing)]
    places = [f"{part.partitions[0]}-{offset}" for part in parts for offset in part.offsets.tolist()]
    return TrainingFile(f"topic {topic}", places, join_values(parts))


def fit_events(file: TrainingFile, own: ModelSettings, options: FitOptions, output: str | None, as_json: bool) -> None:
    """Fit, print and write; raises DataError if there is no event."""
    check_output(output)
    identity = own.identity()
    data = batch_training.read_data(identity, file.values, own.start_weights)
    rejected = Counter(reject.reason for reject in data.rejects)
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(rejected.items()))
    events = len(data.batch.labels)
    if not events:
        raise DataError(f"{file.name}: no event to learn{f' ({reasons})' if reasons else ''}")
    if options.batch and own.eta is None:
        identity = msgspec.structs.replace(identity, eta=batch_training.stable_eta(data.batch))
    result = _learn(identity, data, [file.places[i] for i in data.batch.records], options)
    counts = {"events": events, "passes": len(result.passes), **result.totals, "rejected": dict(rejected)}
    fitted = weights_file.weights_as_json(identity, data.columns.names, result.w, counts, {}, {})
    if output is not None:
        write_atomically(output, msgspec.json.encode(fitted) + b"\n")
        typer.echo(f"weights written to {output}", err=True)
    if as_json:
        return typer.echo(json.dumps(_json(result, fitted), ensure_ascii=False))
    aside = f", {quantity(len(data.rejects), 'record')} set aside ({reasons})" if reasons else ""
    return typer.echo("\n".join(_lines(result, options, aside)))


def _learn(identity: Identity, data: Data, places: list[str], options: FitOptions) -> Result:
    w, passes = data.start.copy(), list[Pass]()
    train = batch_training.descend if options.batch else partial(batch_training.train, tolerance=options.tolerance)
    for last in train(identity, data.batch, w, max_passes=options.max_passes, trace=options.trace):
        passes.append(last)
        if last.number <= MAX_PRINTED_PASSES or not last.number % 100:
            loss = f"  loss {last.loss:.6g}" if last.loss else ""
            typer.echo(f"pass {last.number:>4}  mistakes {last.mistakes:>7,}{loss}", err=True)
    ended = "settled" if options.batch else "tolerated" if last.errors else "converged"
    if last.updates if options.batch else last.errors > options.tolerance:
        ended = "max-passes"
    no_bound = mistake_bound.no_bound_reason(identity, True)
    evidence, bounded = Certificate(), None
    if last.errors or no_bound is None:
        try:
            evidence = separate(data.batch, w.shape, identity.classes)
        except ImportError:
            evidence = Certificate(unknown="pip install 'perceptron-service[fit]' for the linear program")
    if no_bound is None:
        separating = {} if evidence.vector is None else {"the linear program's": evidence.vector}
        norms = np.concatenate([each.squared_norms for each in passes])
        bounded = batch_training.check_bound(identity, data, norms, {"the final weights": w, **separating})
    labels = list(identity.labels or ()) if identity.multiclass else []
    return Result(data, places, labels, w, passes, ended, evidence, bounded, no_bound)


def _lines(r: Result, options: FitOptions, aside: str) -> Iterator[str]:
    """The result as lines of text."""
    yield _ending(r, options)
    of = f" of {len(r.labels):,} labels" if r.labels else ""
    yield f"data     {quantity(len(r.places), 'event')}{of}, {len(r.data.columns) - 1:,} features{aside}"
    names = [f"{short_json(label)}: " for label in r.labels[:MAX_LISTED]] or [""]
    for name, row in zip(names, np.atleast_2d(r.w.T), strict=False):
        yield f"weights  {name}{_largest(row, r.data)}"
    if len(r.labels) > MAX_LISTED:
        yield f"         and {len(r.labels) - MAX_LISTED:,} more labels: -o and --json have them all"
    if r.evidence.combination:
        terms = list[str]()
        for each in _combination(r):
            against = f", {short_json(each['against'])}" if r.labels else ""
            terms.append(f"{each['coefficient']:.6g}·z({each['event']}{against})")
        if len(terms) > MAX_LISTED:
            terms[MAX_LISTED:] = [f"{len(terms) - MAX_LISTED} more"]
        z = "z(·, r) = (e_y - e_r) ⊗ (1, x)" if r.labels else "z = y·(1, x)"
        yield f"evidence {' + '.join(terms)} = 0 (±{ZERO_TOLERANCE:g}), with {z}: no w has w·z > 0 for all of them"
    elif r.evidence.vector is not None and r.ended != "converged":
        margin = float(batch_training.margins(r.data.batch, r.evidence.vector)[0].min())
        norm = "no weight times its column's largest |value| beyond 1: the largest margin in that norm"
        side = "w·z" if r.labels else "y·w·x"
        yield f"evidence a linear program finds w with {side} >= {margin:.6g} for every event and {norm}"
    elif r.evidence.unknown:
        separable = "it converged, so separable; the largest margin is unknown" if r.ended == "converged" else "none"
        yield f"evidence {separable}: {r.evidence.unknown}"
    if r.bounded is not None:
        yield from _bound_lines(r, r.bounded)
    elif r.no_bound and not r.passes[-1].errors:
        yield f"bound    none: {r.no_bound}"
    for one in r.passes if options.trace else ():
        for place, after in zip(r.places if len(one.trace) == len(r.places) else ["all"], one.trace, strict=True):
            rows = " ".join(f"[{' '.join(f'{value:g}' for value in row)}]" for row in np.atleast_2d(after.T))
            yield f"pass {one.number}  {place}  {rows}"


def _ending(r: Result, options: FitOptions) -> str:
    last, count = r.passes[-1], len(r.passes)
    mistakes, updates = r.totals.values()
    after = quantity(mistakes, "mistake")
    if updates != mistakes and r.no_bound is None:  # at s = 0, or within a margin
        after += f" and {quantity(updates, 'update')}"
    if r.ended == "converged":
        return f"converged in pass {count} after {after}"
    if r.ended == "tolerated":
        return f"within tolerance in pass {count} after {after}: {last.errors:,} in it, tolerance {options.tolerance}"
    if r.ended == "settled":
        return f"settled in pass {count}: E = {last.loss:.6g} no longer falls, {last.mistakes:,} mistakes left"
    least = min(r.passes, key=lambda one: one.mistakes)
    figures = f"{after}, {last.mistakes:,} in the last, {least.mistakes:,} at least (pass {least.number})"
    if options.batch:
        figures = f"E = {last.loss:.6g} and still falling"
    if r.evidence.combination:
        return f"not separable: {count} passes made {figures}"
    separable = "separable, but " if r.evidence.vector is not None else ""
    return f"{separable}not converged in {count} passes: {figures}; --max-passes allows more"


def _largest(w: Vector, data: Data) -> str:
    """The bias and the largest of the other weights."""
    largest = np.argsort(-np.abs(w[1:]), kind="stable")[:MAX_LISTED] + 1
    parts = [f"bias {w[0]:g}", *(f"{printable(data.columns.name_of(int(c)))} {w[c]:g}" for c in sorted(largest))]
    more = f" and {len(w) - 1 - len(largest):,} smaller" if len(w) - 1 > len(largest) else ""
    return f"{', '.join(parts)}{more}"


def _combination(r: Result) -> Iterator[dict[str, Any]]:
    """The vectors of the evidence: the event's place, the coefficient, and the label `against` it if there are more."""
    for i, coefficient in r.evidence.combination or ():
        event, other = divmod(i, max(1, len(r.labels) - 1))
        against = {"against": r.labels[other + (other >= r.data.batch.labels[event])]} if r.labels else {}
        yield {"event": r.places[event], "coefficient": coefficient, **against}


def _radius(r: Result, b: BoundCheck) -> float:
    """R = max ‖(1, x)‖; with three labels and more ‖z‖² has it twice."""
    return math.sqrt(b.separation.squared_radius / (2.0 if r.labels else 1.0))


def _bound_lines(r: Result, b: BoundCheck) -> Iterator[str]:
    s, updates = b.separation, quantity(b.updates, "update")
    if b.novikoff is not None:
        twice, beta = ("2·", "β² = 2·R²") if r.labels else ("", "β = R")
        terms = f"R = {_radius(r, b):.6g}, γ = {s.margin:.6g}, ‖w_opt‖ = {math.sqrt(s.squared_norm):.6g}"
        novikoff = f"{b.novikoff:.6g} = {twice}(R/γ)²·‖w_opt‖²"
        yield f"bound    {updates} <= {novikoff}: {terms} (w_opt: {b.vector}, the smaller bound)"
        low, high = s.sides(np.array([float(b.updates)]))
        last = f"{low[0]:.6g} <= {np.sum(r.w * r.w):.6g} <= {high[0]:.6g}"
        held = f"{'held at every update' if b.norms else 'BROKEN'} (α = γ, {beta}, w0 = w_opt)"
        yield f"norm     n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² {held}; at the last: {last}"
    yield f"Hu       {updates} <= {b.hu:.6g} = D², D = ‖ω(0) - a·ω_opt‖, a = (β² + 1)/(2γ), ‖ω_opt‖ = 1"


def _json(r: Result, fitted: dict[str, Any]) -> dict[str, Any]:
    """The whole result; with three labels and more each vector has a row for each label, bias first."""
    evidence, b, combination = r.evidence, r.bounded, [*_combination(r)]
    separable = True if b is not None or evidence.vector is not None or not r.passes[-1].errors else None
    evidence_json = {
        "separating": None if evidence.vector is None else evidence.vector.T.tolist(),
        "combination": combination or None,
        "residual": evidence.residual if combination else None,
        "unknown": evidence.unknown,
    }
    bounds: dict[str, Any] | None = None
    if b is not None:
        bounds = {name: getattr(b, name) for name in ("updates", "vector", "novikoff", "hu")}
        bounds |= {"radius": _radius(r, b), "margin": b.separation.margin, "norm": math.sqrt(b.separation.squared_norm)}
        bounds["norms_between_their_sides"] = b.norms
    passes = [
        {name: getattr(each, name) for name in ("mistakes", "updates", "errors", "loss")}
        | {"pass": each.number, "trace": [after.T.tolist() for after in each.trace]}
        for each in r.passes
    ]
    result = {"ended": r.ended, "separable": False if combination else separable, "evidence": evidence_json}
    return result | {"bounds": bounds, "passes": passes, "weights": fitted}
