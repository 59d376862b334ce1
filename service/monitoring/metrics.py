"""Every metric, declared once.

Durable counters are those of the last accepted snapshot: a process that replays records after a crash does not count
them twice, and a counter never goes back within a process. Only the learner exports them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_LABELS = 50
"""A model with more labels has no series by label."""
FAST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Buckets, in seconds, of what takes milliseconds if all is well."""
SAVE_BUCKETS = (*FAST_BUCKETS, 5.0, 10.0)
DELAY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86400)


class ModelFigures(NamedTuple):
    """One model at this moment. SNAPSHOT_COUNTERS and GAUGES name the members that are metrics."""

    about: Any
    """The description of the model (`serving.model_info.Description`)."""
    durable: Any
    """Its counts in the last accepted snapshot (`learning.classifier.Counts`)."""
    saved_at: float
    lag: dict[Any, int]
    """Records that are still to be learned, by topic and partition."""
    held_back: dict[Any, int]
    """Records that open transactions hold back, by topic and partition."""
    unsaved: int
    """Records that were read and that no accepted snapshot covers."""


SNAPSHOT_COUNTERS = {
    "events": "Events learned.",
    "mistakes": "Events with y*s <= 0 before learning.",
    "wrong_predictions": "Events predicted wrongly before learning.",
    "updates": "Events that changed the weights.",
    "ignored_features": "Features beyond the cap on columns.",
    "skipped_events": "Records that `where` passed over.",
}
"""Counters of the process that learns, by the member of `ModelFigures.durable`."""
GAUGES = {
    "version": ("about.version", "Accepted snapshots so far."),
    "columns": ("about.columns", "Columns of the weight vector, the bias included."),
    "scaled_columns": ("about.scaled_columns", "Columns that have scaled numbers, if the model scales."),
    "squared_norm": ("about.squared_norm", "Squared norm of the weights."),
}
"""Gauges of every process: a path in `ModelFigures`, and the help text. The next two have the same form."""
LEARNER_GAUGES = {
    "squared_norm_limit": ("about.squared_norm_limit", "The start's squared norm plus the most that updates can add."),
    "loss": ("about.loss", "Mean of max(0, -y*s) over the recent window."),
    "auc": ("about.auc", "Area under the ROC curve of the served scores, over the recent window."),
    "average_precision": ("about.average_precision", "Mean precision at the score of each positive event, recent."),
    "log_loss": ("about.log_loss", "Mean of -log(probability of the label), over the recent window."),
    "mistake_bound": ("about.bound", "The most updates that the perceptron theorem allows, if it applies."),
    "snapshot_timestamp_seconds": ("saved_at", "When the last save was accepted."),
    "unsaved_records": ("unsaved", "Records read that no accepted snapshot covers."),
}
"""Gauges of the process that learns."""
LOG_GAUGES = {
    "learning": ("about.learning_here", "Whether this process learns the model."),
    "served_snapshot_timestamp_seconds": ("saved_at", "When the snapshot that answers was saved."),
}
"""Gauges of models that learn a topic. A threshold unit does not learn one."""
SHARES = {
    "baseline": ("baseline_accuracy", "Share of the most frequent label: the accuracy of always predicting it"),
    "previous_label_baseline": ("previous_label_accuracy", "Share of events with the label of the event before"),
    "balanced_accuracy": ("balanced_accuracy", "Mean over labels of the share of right predictions, as served"),
    "precision": ("precision", "Share of right predictions among the positive ones, as served"),
    "recall": ("recall", "Share of right predictions among the events of the positive label, as served"),
    "f1": ("f1", "Harmonic mean of precision and recall"),
}
"""Shares of the process that learns, by metric: the member of the description, and the help text."""
WEIGHTS = {"last": "accuracy", **{name: f"{name}_accuracy" for name in ("average", "served", "answered")}}
"""The accuracies of a description by the metric label `weights`. Some models have no average, or no logged answers."""
JOIN_COUNTERS = {
    "expired_events": ("expired", "Events whose window ended without a label, or before they came."),
    "repeated_events": ("repeated", "Events whose id was there already."),
    "dropped_events": ("dropped", "Events that were dropped for want of room."),
    "set_aside_records": ("set_aside", "Records whose timestamp was far ahead of the others when they came."),
}
"""Counters of models with a join, by the outcome that they count."""
CANDIDATE_GAUGES = {
    "events": "Events learned by a candidate.",
    "mistakes": "Events with y*s <= 0 before learning, of a candidate.",
    "updates": "Events that changed a candidate's weights.",
    "answers": "Whether a candidate answers for its model.",
    "auc": "Area under the ROC curve of a candidate's scores, over the recent window.",
    "average_precision": "Mean precision at the score of each positive event, of a candidate, recent.",
    "log_loss": "Mean of -log(probability of the label), of a candidate, over the recent window.",
}
"""Gauges of candidates, by member. They are not counters, since a candidate that begins again counts from 0."""

MetricValues = Iterable[tuple[tuple[str, ...], Any]]
"""The label values of each series, and its value."""


class Metrics(Collector):
    """The process's own counters, and the models' figures at the moment of a scrape."""

    def __init__(
        self,
        version: str,
        models: Callable[[], Iterable[Awaitable[ModelFigures]]],
        ready: Callable[[], bool],
        missing: Callable[[], dict[str, float]],
    ) -> None:
        """`missing` gives, for each dependency, since when it does not answer (seconds since 1970), or 0."""
        # Otherwise each counter has a series of start times too, which nothing here reads.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        self._models, self.ready, self.missing = models, ready, missing
        self._scraping = asyncio.Lock()
        self._rows: list[ModelFigures] = []
        self._highest: dict[tuple[str, ...], int] = {}
        registry.register(self)

        counter = partial(prometheus_client.Counter, namespace="perceptron", registry=registry)
        gauge = partial(prometheus_client.Gauge, namespace="perceptron", registry=registry)
        self.predictions = counter("predictions", f"Predictions, by label up to {MAX_LABELS}.", ["model", "label"])
        text = "Features that events usually have, and predictions had not."
        self.missing_features = counter("missing_features", text, ["model"])
        self.logged = counter("predictions_logged", "Predictions for the log, by result.", ["model", "result"])
        self.ingested = counter("ingested_records", "Posted records, by result.", ["model", "kind", "result"])
        self.snapshots = counter("snapshots", "Saves, by result.", ["model", "result"])
        self.snapshot_bytes = counter("snapshot_bytes", "Bytes written to the store.", ["model"])
        self.rewinds = counter("rewinds", "Times that state was dropped and restored.", ["model", "cause"])
        self.offset_gaps = counter("offset_gaps", "Gaps between two batches, as compaction leaves them.", ["model"])
        self.gaps = counter("unexplained_gaps", "Stops at batches whose offsets do not follow each other.", ["model"])
        self.dead_letters = counter("dead_letters", "Records set aside by this process.", ["model"])
        self.ignored_partitions = counter("ignored_partitions", "Partitions in responses that were not asked for.")
        self.throttled = counter("throttled_seconds", "Time that fetches waited because of a quota of Kafka.")
        self.dropped_lines = counter("dropped_log_lines", "Log lines that could not be written at once.")
        self.ended = counter("http_connections_ended", "Connections that we ended, by cause.", ["cause"])
        timer = partial(prometheus_client.Histogram, namespace="perceptron", registry=registry, buckets=FAST_BUCKETS)
        self.requests = timer("http_request_duration_seconds", "Requests, by route.", ["route", "method", "code"])
        self.saving = timer("snapshot_duration_seconds", "Accepted saves.", ["model"], buckets=SAVE_BUCKETS)
        self.slices = timer("slice_duration_seconds", "Slices: records learned in one turn.", ["model"])
        text = "Records whose timestamp was more than a minute ahead of the process's clock."
        self.future_records = counter("future_records", text, ["model"])
        delay = "From a timestamp to learning, for the last record of each slice; not if it is unset or in the future."
        self.delays = timer("event_delay_seconds", delay, ["model"], buckets=DELAY_BUCKETS)
        self.loop_lag = gauge("event_loop_lag_seconds", "How late the event loop last woke up.")
        gauge("build_info", "The running release.", ["version"]).labels(version).set(1)

    async def render(self) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`).

        A hundred models have ten thousand lines. The figures of each model are taken in a turn of the event loop, and
        the text is made in a thread.
        """
        async with self._scraping:
            rows = []
            for row in self._models():
                rows.append(await row)
                await asyncio.sleep(0)
            self._rows = rows
            return await asyncio.to_thread(prometheus_client.generate_latest, self.registry)

    def collect(self) -> Iterator[Metric]:
        """The models' metrics, from the figures that `render` took: family by family, each with all models."""
        rows = self._rows
        yield GaugeMetricFamily("perceptron_ready", "Whether every model can answer.", value=float(self.ready()))
        text = "Since when Redis, Kafka or its group's coordinator does not answer; 0 while it does."
        since = [((dependency,), seconds) for dependency, seconds in self.missing().items()]
        yield _gauge("missing_since_timestamp_seconds", text, since, ["dependency"])

        learned = [row for row in rows if row.about.learning_here]
        for name, text in SNAPSHOT_COUNTERS.items():
            count = attrgetter(name.removesuffix("_events"))
            yield self._counter(name, text, [((row.about.model,), count(row.durable)) for row in learned])
        text = "Features whose kind has changed between number and text."
        yield self._counter("kind_changes", text, [((row.about.model,), row.about.kind_changes) for row in learned])
        rejected = [((r.about.model, reason), n) for r in learned for reason, n in sorted(r.durable.rejected.items())]
        yield from self._joins([(row.about, row.durable.join) for row in learned if row.durable.join])
        text = "Records that are not an event, by reason."
        yield self._counter("rejected_events", text, rejected, ["model", "reason"])

        logged = [row for row in rows if row.about.next]
        for table, exported in ((GAUGES, rows), (LEARNER_GAUGES, learned), (LOG_GAUGES, logged)):
            for name, (path, text) in table.items():
                value = attrgetter(path)
                yield _gauge(name, text, [((row.about.model,), value(row)) for row in exported])
        for member, (name, text) in SHARES.items():
            yield from _shares(name, text, [((r.about.model,), getattr(r.about, member)) for r in learned])
        yield from _accuracies(learned)
        models = [row.about for row in learned if len(row.about.labels) <= MAX_LABELS]
        recalls = [((m.model, m.identity.text_of(label.label)), label.recall) for m in models for label in m.labels]
        text = "Share of right predictions among the events of the label, as served"
        yield from _shares("label_recall", text, recalls, ["model", "label"])
        # This is a summary, since in the exposition format only summaries have quantiles.
        margins = Metric("perceptron_margin", "Quantiles of y*s/|x| over the recent window.", "summary")
        for row in learned:
            for quantile, value in (row.about.margins or {}).items():
                margins.add_sample("perceptron_margin", {"model": row.about.model, "quantile": quantile}, value)
        yield margins
        lags = [((row.about.model, p.topic, str(p.partition)), n) for row in learned for p, n in row.lag.items()]
        place = "model", "topic", "partition"
        yield _gauge("lag_records", "Records not learned yet, those of open transactions too.", lags, place)
        held = [((row.about.model, p.topic, str(p.partition)), n) for row in learned for p, n in row.held_back.items()]
        yield _gauge("open_transaction_records", "Records that a transaction has held back for 10 s.", held, place)

    def _joins(self, models: Sequence[tuple[Any, Any]]) -> Iterator[Metric]:
        """The metrics of joins, from each model's description and the counts of its join."""
        labels = [((m.model, outcome), join[outcome]) for m, join in models for outcome in m.label_outcomes or ()]
        yield self._counter("labels", "Label records, by what became of them.", labels, ["model", "outcome"])
        for name, (outcome, text) in JOIN_COUNTERS.items():
            yield self._counter(name, text, [((m.model,), join[outcome]) for m, join in models])
        yield _gauge("held_events", "Events that wait for their labels.", [((m.model,), m.held) for m, _ in models])
        waits = [((m.model,), m.join_waits is not None) for m, _ in models]
        yield _gauge("join_waits", "Whether learning waits for records of a partition, or for labels.", waits)
        text = "From events to their labels."
        delays = HistogramMetricFamily("perceptron_label_delay_seconds", text, labels=["model"])
        for m, join in models:
            bounds = [name.removeprefix("delay_") for name in join if name.startswith("delay_")]
            numbers = accumulate(join[f"delay_{bound}"] for bound in bounds)
            delays.add_metric([m.model], [*zip(bounds, numbers, strict=True)], sum_value=None)
        yield delays

    def _counter(self, name: str, text: str, values: MetricValues, labels: Sequence[str] = ("model",)) -> Metric:
        """A counter of models. It never goes back: a Redis that was rolled back must not look like a new process."""
        family = CounterMetricFamily(f"perceptron_{name}", text, labels=labels)
        for series, value in values:
            self._highest[name, *series] = max(value, self._highest.get((name, *series), 0))
            family.add_metric(series, self._highest[name, *series])
        return family


def _gauge(name: str, text: str, values: MetricValues, labels: Sequence[str] = ("model",)) -> GaugeMetricFamily:
    """A gauge; a value that is None or infinite has no series."""
    family = GaugeMetricFamily(f"perceptron_{name}", text, labels=labels)
    for series, value in values:
        if value is not None and math.isfinite(value):
            family.add_metric(series, float(value))
    return family


def _shares(name: str, text: str, values: Sequence[Any], labels: Sequence[str] = ("model",)) -> Iterator[Metric]:
    """Shares (`serving.model_info.Share`) over the recent window and overall; a share that is None has no series."""
    for suffix, member, words in (("", "recent", ", over the recent window."), ("_overall", "all", ".")):
        shares = ((series, share and getattr(share, member)) for series, share in values)
        yield _gauge(name + suffix, text + words, shares, labels)


def _intervals(name: str, text: str, values: Sequence[Any], labels: Sequence[str]) -> Iterator[Metric]:
    """Shares, with the ends of the interval of each."""
    yield from _shares(name, text, values, labels)
    for i, (suffix, end) in enumerate((("_low", "lower"), ("_high", "upper"))):
        ends = [(series, share and share.all_interval and share.all_interval[i]) for series, share in values]
        words = f": the {end} end of an interval that holds at all times (95 %)."
        yield _gauge(name + suffix, text + words, ends, labels)


def _accuracies(rows: Sequence[ModelFigures]) -> Iterator[Metric]:
    """The accuracies of weights and candidates, with the ends of their intervals, and the gauges of candidates."""
    models = [row.about for row in rows]
    weights = [((m.model, name), getattr(m, member)) for m in models for name, member in WEIGHTS.items()]
    candidates = [((m.model, candidate.name), candidate) for m in models for candidate in m.candidates]
    accuracies = [(series, candidate.accuracy) for series, candidate in candidates]
    text = "Share of right predictions by these weights (last, average, served), or of right answers (answered)"
    yield from _intervals("prequential_accuracy", text, weights, ["model", "weights"])
    text = "Share of right predictions by the weights that a candidate would answer with, since it began"
    yield from _intervals("candidate_accuracy", text, accuracies, ["model", "candidate"])
    for name, text in CANDIDATE_GAUGES.items():
        yield _gauge(f"candidate_{name}", text, ((s, getattr(c, name)) for s, c in candidates), ("model", "candidate"))
