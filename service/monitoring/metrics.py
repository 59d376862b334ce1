"""Every metric, declared once.

Durable counters are those of the last accepted snapshot: a process that replays records after a crash does not
count them twice, and a counter never goes back within a process. The learner alone exports them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_LABELS = 50
"""Of a model of more there are no series by label."""
TURN_SECONDS = 0.002
"""Of the loop, for the figures of a scrape: a prediction waits for no more."""
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Buckets of what takes milliseconds where all is well."""


class Figures(NamedTuple):
    """One model at this moment. What has its metric named alike is read from it by that name: see COUNTERS, GAUGES."""

    about: Any
    """What the model has to say of itself (`serving.report.Description`)."""
    durable: Any
    """Its counts as of its last accepted snapshot (`learning.learner.Counts`)."""
    saved_at: float
    lag: dict[int, int]
    unsaved: int
    """Records that it read and that no accepted snapshot covers."""


COUNTERS = {
    "events": "Events learned.",
    "mistakes": "Events with y*s <= 0 before learning.",
    "wrong_predictions": "Events predicted wrongly before learning.",
    "updates": "Events that changed the weights.",
    "ignored_features": "Features beyond the cap on columns.",
    "skipped_events": "Records that `where` passed over.",
}
"""Of `durable`, and of the learner alone."""

GAUGES = {
    "version": "Accepted snapshots so far.",
    "columns": "Columns of the weight vector, the bias included.",
    "scaled_columns": "Columns that have scaled numbers, where the model scales.",
    "squared_norm": "Squared norm of the weights.",
}
SHARES = {
    "baseline": ("baseline_accuracy", "Share of the most frequent label: what who always answers with it is right in"),
    "balanced_accuracy": ("balanced_accuracy", "Mean over labels of the share of right predictions, as served"),
    "precision": ("precision", "Share of right predictions among the positive ones, as served"),
    "recall": ("recall", "Share of right predictions among the events of the positive label, as served"),
    "f1": ("f1", "Harmonic mean of precision and recall"),
}
"""Their metrics by member, of the learner alone: over the recent window, and with `_overall` over all events."""
OF_WEIGHTS = {"last": "accuracy", "average": "average_accuracy", "served": "served_accuracy"}
"""The accuracies' members by the label `weights`. The average is there where one is kept."""
OF_CANDIDATES = {
    "events": ("candidate_events", "Events learned by a candidate."),
    "mistakes": ("candidate_mistakes", "Events with y*s <= 0 before learning, of a candidate."),
    "updates": ("candidate_updates", "Events that changed a candidate's weights."),
    "accuracy.recent": (
        "candidate_accuracy",
        "Share of right predictions by the weights that a candidate would answer with, over the recent window.",
    ),
    "accuracy.all": ("candidate_accuracy_overall", "The same over all events since it began."),
    "accuracy.low": ("candidate_accuracy_low", "The lower end of an interval that holds at all times (95 %)."),
    "accuracy.high": ("candidate_accuracy_high", "Its upper end."),
    "answers": ("candidate_answers", "Whether a candidate answers for its model."),
}
"""By member, of the learner alone: gauges, since a candidate that begins anew counts from 0."""
LEARNER_GAUGES = {
    "squared_norm_limit": "What the squared norm cannot exceed: the start's plus what all updates can add.",
    "loss": "Mean of max(0, -y*s) over the recent window.",
}
"""Of the learner alone."""


class Metrics:
    """The process's own counters, and the models' figures at the moment of a scrape."""

    def __init__(
        self,
        version: str,
        models: Callable[[], Iterable[Figures]],
        ready: Callable[[], bool],
        missing: Callable[[], Mapping[str, float]],
    ) -> None:
        """`missing` gives, for each dependency, since when it does not answer (seconds since 1970), or 0."""
        # Else each counter has a series of start times beside it, which nothing here reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._models, self.missing, self._now = models, missing, _Models(ready, missing)
        self._scraping = asyncio.Lock()
        self.registry.register(self._now)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"perceptron_{name}", text, labels, registry=self.registry)

        self.predictions = counter(
            "predictions", f"Predictions answered, by label up to {MAX_LABELS}.", "model", "label"
        )
        self.snapshots = counter("snapshots", "Saves, by result.", "model", "result")
        self.snapshot_bytes = counter("snapshot_bytes", "Bytes written to the store.", "model")
        self.rewinds = counter("rewinds", "Times that state was dropped and restored.", "model", "cause")
        self.offset_gaps = counter(
            "offset_gaps", "Offsets between two batches without a batch, as compaction leaves them.", "model"
        )
        self.gaps = counter("unexplained_gaps", "Stops where the log's batches do not follow on each other.", "model")
        self.dead_letters = counter("dead_letters", "Records set aside by this process.", "model")
        self.ended = counter("http_connections_ended", "Connections that we ended, by cause.", "cause")
        self.requests = Histogram(
            "perceptron_http_request_duration_seconds",
            "Requests, by route template.",
            ("route", "method", "code"),
            buckets=FAST,
            registry=self.registry,
        )
        self.saving = Histogram(
            "perceptron_snapshot_duration_seconds",
            "Accepted saves.",
            ("model",),
            buckets=(*FAST, 5.0, 10.0),
            registry=self.registry,
        )
        self.slices = Histogram(
            "perceptron_slice_duration_seconds",
            "Slices of records learned between two turns of the event loop.",
            ("model",),
            buckets=FAST,
            registry=self.registry,
        )
        self.delays = Histogram(
            "perceptron_event_delay_seconds",
            "From a record's timestamp to its learning, for the last record of each slice.",
            ("model",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86400),
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "perceptron_event_loop_lag_seconds", "How late the event loop woke up, the latest.", registry=self.registry
        )
        Gauge("perceptron_build_info", "The running release.", ("version",), registry=self.registry).labels(
            version
        ).set(1)

    async def render(self) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`).

        A hundred models have ten thousand lines. Their figures are taken with turns of the loop in between, each
        model's in one turn, and the text is made beside it.
        """
        async with self._scraping:
            rows, turned = [], time.perf_counter()
            for row in self._models():
                rows.append(row)
                if time.perf_counter() - turned > TURN_SECONDS:
                    await asyncio.sleep(0)
                    turned = time.perf_counter()
            self._now.rows = rows
            return await asyncio.to_thread(generate_latest, self.registry)


class _Models(Collector):
    def __init__(self, ready: Callable[[], bool], missing: Callable[[], Mapping[str, float]]) -> None:
        self.rows: list[Figures] = []
        self._ready, self._missing = ready, missing
        self._highest: dict[tuple[str, ...], int] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing before the first scrape: the figures are taken then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other, each with all its models."""
        rows = self.rows
        yield GaugeMetricFamily("perceptron_ready", "Whether every model can answer.", value=float(self._ready()))
        since = GaugeMetricFamily(
            "perceptron_missing_since_timestamp_seconds",
            "Since when Redis, Kafka or its group's coordinator does not answer; 0 while it does.",
            labels=["dependency"],
        )
        for dependency, seconds in self._missing().items():
            since.add_metric([dependency], seconds)
        yield since

        learned = [row for row in rows if row.about.learning_here]
        for name, text in COUNTERS.items():
            family = CounterMetricFamily(f"perceptron_{name}", text, labels=["model"])
            count = attrgetter(name.removesuffix("_events"))
            for row in learned:
                family.add_metric([row.about.model], self._rising(count(row.durable), name, row.about.model))
            yield family
        family = CounterMetricFamily(
            "perceptron_rejected_events", "Records that were no event, by reason.", labels=["model", "reason"]
        )
        for row in learned:
            for reason, n in sorted(row.durable.rejected.items()):
                family.add_metric([row.about.model, reason], self._rising(n, "rejected", row.about.model, reason))
        yield family

        def gauge(
            name: str, text: str, value: Callable[[Figures], float | None], of: Iterable[Figures] = learned
        ) -> GaugeMetricFamily:
            gauges = GaugeMetricFamily(f"perceptron_{name}", text, labels=["model"])
            for row in of:
                v = value(row)
                if v is not None and math.isfinite(v):
                    gauges.add_metric([row.about.model], v)
            return gauges

        # What is given and has no log, a threshold unit, is nobody's to learn, and as old as its process.
        logged = [row for row in rows if row.about.next]
        yield gauge("learning", "Whether this process learns the model.", lambda r: r.about.learning_here, logged)
        for name, text in GAUGES.items():
            yield gauge(name, text, lambda r, name=name: getattr(r.about, name), rows)  # type: ignore[misc]
        for name, text in LEARNER_GAUGES.items():
            yield gauge(name, text, lambda r, name=name: getattr(r.about, name))  # type: ignore[misc]
        for member, (name, text) in SHARES.items():
            shown = [row for row in learned if getattr(row.about, member) is not None]
            for over, suffix, words in (("recent", "", ", over the recent window"), ("all", "_overall", "")):
                of = attrgetter(f"{member}.{over}")
                yield gauge(name + suffix, f"{text}{words}.", lambda r, of=of: of(r.about), shown)  # type: ignore[misc]
        yield from _accuracies(learned)
        yield from _recalls(row for row in learned if len(row.about.labels) <= MAX_LABELS)
        for member, (name, text) in OF_CANDIDATES.items():
            beside = GaugeMetricFamily(f"perceptron_{name}", text, labels=["model", "candidate"])
            for row in learned:
                for one in row.about.candidates:
                    value = attrgetter(member)(one)
                    if value is not None:
                        beside.add_metric([row.about.model, one.name], float(value))
            yield beside
        yield gauge(
            "mistake_bound",
            "The most updates that the perceptron theorem allows; absent where it says nothing.",
            lambda r: r.about.bound,
        )
        # A summary: in the exposition format quantiles are a summary's alone.
        margins = Metric("perceptron_margin", "Quantiles of y*s/|x| over the recent window.", "summary")
        for row in learned:
            for quantile, value in (row.about.margins or {}).items():
                margins.add_sample("perceptron_margin", {"model": row.about.model, "quantile": quantile}, value)
        yield margins
        yield gauge("snapshot_timestamp_seconds", "When the last save was accepted.", lambda r: r.saved_at)
        yield gauge(
            "served_snapshot_timestamp_seconds",
            "When the snapshot that answers was saved.",
            lambda r: r.saved_at,
            logged,
        )
        yield gauge("unsaved_records", "Records read that no accepted snapshot covers.", lambda r: r.unsaved)
        lags = GaugeMetricFamily("perceptron_lag_records", "Records not learned yet.", labels=["model", "partition"])
        for row in learned:
            for partition, n in sorted(row.lag.items()):
                lags.add_metric([row.about.model, str(partition)], n)
        yield lags

    def _rising(self, value: int, *key: str) -> int:
        """Never less than before: a Redis that was rolled back must not look like a reset of the process."""
        self._highest[key] = max(value, self._highest.get(key, 0))
        return self._highest[key]


def _accuracies(rows: Iterable[Figures]) -> Iterator[Metric]:
    """Of the weights of these models, over both spans, and the ends of an interval of the longer one."""
    text = "Share of right predictions by these weights (last, average, served), each made before learning the event"
    family = partial(GaugeMetricFamily, labels=["model", "weights"])
    name, interval = "perceptron_prequential_accuracy", "end of an interval that holds at all times (95 %)"
    over, overall = family(name, f"{text}, over the recent window."), family(f"{name}_overall", f"{text}.")
    low = family(f"{name}_low", f"{text}: the lower {interval}.")
    high = family(f"{name}_high", f"{text}: the upper {interval}.")
    for row in rows:
        for weights, member in OF_WEIGHTS.items():
            if (share := getattr(row.about, member)) is not None:
                ends = share.all_interval or (None, None)
                for shown, value in zip((over, overall, low, high), (share.recent, share.all, *ends), strict=True):
                    if value is not None:
                        shown.add_metric([row.about.model, weights], value)
    yield from (over, overall, low, high)


def _recalls(rows: Iterable[Figures]) -> Iterator[Metric]:
    """Of each label of these models, over both spans."""
    text = "Share of right predictions among the events of the label, as served"
    families = {
        over: GaugeMetricFamily(f"perceptron_label_recall{suffix}", f"{text}{words}.", labels=["model", "label"])
        for over, suffix, words in (("recent", "", ", over the recent window"), ("all", "_overall", ""))
    }
    for row in rows:
        for label in row.about.labels:
            for over, family in families.items():
                if (share := getattr(label.recall, over)) is not None:
                    family.add_metric([row.about.model, row.about.identity.text_of(label.label)], share)
    yield from families.values()
