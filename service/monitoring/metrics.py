"""Every metric, declared once.

Durable counters are those of the last accepted snapshot: a process that replays records after a crash does not
count them twice, and a counter never goes back within a process. The learner alone exports them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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

disable_created_metrics()  # type: ignore[no-untyped-call]
# Else each counter has a series of start times beside it, which nothing here reads.

QUANTILES = (0.1, 0.5, 0.9)
TURN_SECONDS = 0.002
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Durable(NamedTuple):
    """Counts of one model as of its last accepted snapshot."""

    events: int
    mistakes: int
    wrong_predictions: int
    updates: int
    ignored_features: int
    rejected: dict[str, int]


class Now(NamedTuple):
    """One model at this moment. From `durable` on figures are the learner's alone."""

    model: str
    learning: bool
    version: int
    columns: int
    squared_norm: float
    saved_at: float
    durable: Durable | None
    limit: float | None
    accuracy: float | None
    bound: int | None
    margins: tuple[float, Sequence[float]] | None
    """Mean perceptron loss, and quantiles of the margin by QUANTILES."""
    lag: dict[int, int]


class Metrics:
    """The process's own counters, and the models' figures at the moment of a scrape."""

    def __init__(
        self,
        version: str,
        models: Callable[[], Iterable[Now]],
        ready: Callable[[], bool],
        missing: Callable[[], Mapping[str, float]],
    ) -> None:
        """`missing` gives, for each dependency, since when it does not answer (seconds since 1970), or 0."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._models, self._now = models, _Models(ready, missing)
        self._scraping = asyncio.Lock()
        self.registry.register(self._now)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"perceptron_{name}", text, labels, registry=self.registry)

        self.predictions = counter("predictions", "Predictions answered, by label.", "model", "label")
        self.snapshots = counter("snapshots", "Saves, by result.", "model", "result")
        self.snapshot_bytes = counter("snapshot_bytes", "Bytes written to the store.", "model")
        self.rewinds = counter("rewinds", "Times that state was dropped and restored.", "model", "cause")
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
        self.rows: list[Now] = []
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

        for name, text, field in (
            ("events", "Events learned.", "events"),
            ("mistakes", "Events with y*s <= 0 before learning.", "mistakes"),
            ("wrong_predictions", "Events predicted wrongly before learning.", "wrong_predictions"),
            ("updates", "Events that changed the weights.", "updates"),
            ("ignored_features", "Features beyond the cap on columns.", "ignored_features"),
        ):
            family = CounterMetricFamily(f"perceptron_{name}", text, labels=["model"])
            for row in rows:
                if row.durable is not None:
                    family.add_metric([row.model], self._rising(getattr(row.durable, field), name, row.model))
            yield family
        family = CounterMetricFamily(
            "perceptron_rejected_events", "Records that were no event, by reason.", labels=["model", "reason"]
        )
        for row in rows:
            if row.durable is not None:
                for reason, n in sorted(row.durable.rejected.items()):
                    family.add_metric([row.model, reason], self._rising(n, "rejected", row.model, reason))
        yield family

        def gauge(name: str, text: str, value: Callable[[Now], float | None]) -> GaugeMetricFamily:
            gauges = GaugeMetricFamily(f"perceptron_{name}", text, labels=["model"])
            for row in rows:
                v = value(row)
                if v is not None and math.isfinite(v):
                    gauges.add_metric([row.model], v)
            return gauges

        yield gauge("learning", "Whether this process learns the model.", lambda r: float(r.learning))
        yield gauge("version", "Accepted snapshots so far.", lambda r: r.version)
        yield gauge("columns", "Columns of the weight vector, the bias included.", lambda r: r.columns)
        yield gauge("squared_norm", "Squared norm of the weights.", lambda r: r.squared_norm)
        yield gauge(
            "squared_norm_limit",
            "What the squared norm cannot exceed: the start's plus that of all updates.",
            lambda r: r.limit,
        )
        yield gauge(
            "prequential_accuracy",
            "Share of right predictions, each made before learning the event, over the recent window.",
            lambda r: r.accuracy,
        )
        yield gauge(
            "mistake_bound",
            "The most updates that the perceptron theorem allows; absent where it says nothing.",
            lambda r: r.bound,
        )
        yield gauge("loss", "Mean of max(0, -y*s) over the recent window.", lambda r: r.margins and r.margins[0])
        # A summary: in the exposition format quantiles are a summary's alone.
        margins = Metric("perceptron_margin", "Quantiles of y*s/|x| over the recent window.", "summary")
        for row in rows:
            for quantile, value in zip(QUANTILES, row.margins[1], strict=True) if row.margins else ():
                margins.add_sample("perceptron_margin", {"model": row.model, "quantile": str(quantile)}, value)
        yield margins
        yield gauge(
            "snapshot_timestamp_seconds",
            "When the last save was accepted.",
            lambda r: r.saved_at if r.learning else None,
        )
        yield gauge(
            "served_snapshot_timestamp_seconds", "When the snapshot that answers was saved.", lambda r: r.saved_at
        )
        lags = GaugeMetricFamily("perceptron_lag_records", "Records not learned yet.", labels=["model", "partition"])
        for row in rows:
            for partition, n in sorted(row.lag.items()):
                lags.add_metric([row.model, str(partition)], n)
        yield lags

    def _rising(self, value: int, *key: str) -> int:
        """Never less than before: a Redis that was rolled back must not look like a reset of the process."""
        self._highest[key] = max(value, self._highest.get(key, 0))
        return self._highest[key]
