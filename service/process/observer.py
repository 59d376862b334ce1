"""Updates a model's serving state and metrics, and logs each repeated event once."""

import asyncio
import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from service.errors import DataError, DependencyError, LogGap
from service.learning.evaluation.advice import advice
from service.learning.learner import Learner
from service.learning.records import PartitionId, by_text
from service.monitoring.metrics import Metrics
from service.monitoring.rejections import Rejections
from service.serving.models import Model, ServedModel
from service.snapshots.head import Head, Writer
from service.snapshots.keeper import AcceptedSave
from service.streaming.ports import Gap
from service.streaming.records import Message

REWINDS = {
    "refused": "the store's snapshot is not the one that ours was built on",
    "replaced": "the store's snapshot is not ours any more",
    "recreated": "the topic was created again under the process",
}
"""Why state is dropped, by the metric's label."""
LOGGED_ADVICE = "columns", "accuracy", "recall", "kind of "
"""The advice that the log has too, once."""
MAX_SKEW_SECONDS = 60.0
"""A record whose timestamp is further ahead of this process's clock is from the future."""
LARGE_SAVE_BYTES, LARGE_RECORD_SECONDS = 4 << 20, 0.002
"""Bytes of a save, and seconds of learning a record, from which freed memory goes back to the system."""


def release_memory() -> None:
    """Give freed memory back to the system with `malloc_trim`; glibc would keep it. Without glibc nothing is done.

    It would keep 12 MB after a start, 30 MB after the first save of a million columns (measured). This takes some
    milliseconds, in which other threads may wait for memory.
    """
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


class ModelObserver:
    """The `streaming.ports.Observer` of one model."""

    def __init__(self, model: Model, metrics: Metrics, log: Any) -> None:
        self._model, self._metrics, self._log = model, metrics, log.bind(model=model.name)
        self._missing: dict[str, tuple[str, str, float]] = {}
        """Outages by kind (kafka, redis, or a failed save): message, dependency, and when it began."""
        self._logged = set[tuple[str, ...]]()
        self._rejections = Rejections()
        # These begin with 0, so that the first one is an increase too.
        for result in ("accepted", "failed", "refused"):
            metrics.snapshots.labels(model.name, result)
        for cause in REWINDS:
            metrics.rewinds.labels(model.name, cause)
        for counter in (metrics.gaps, metrics.future_records):
            counter.labels(model.name)
        self._large = False

    def learning(self, learner: Learner, head: Head, digest: str) -> None:
        self._recovered("redis")
        if not self._model.learning_here:
            following, events = by_text(learner.next), learner.main.counts.events
            self._log.info("learning", version=head.version, next=following, events=events)
        self._model.status.stopped = None
        self._model.learning_here = True
        self._model.answering = ServedModel(learner, head, digest)

    def released(self) -> None:
        if self._model.learning_here:
            # From here on the newest snapshot answers, even if our own state was dropped.
            self._model.learning_here = False
            self._log.info("no longer learning", version=self._model.answering and self._model.answering.head.version)

    def learned(self, timestamps: NDArray[np.int64], seconds: float) -> None:
        self._recovered("kafka")
        records, now = len(timestamps), time.time()
        is_future = timestamps > 1000 * (now + MAX_SKEW_SECONDS)
        if future := int(is_future.sum()):
            self._metrics.future_records.labels(self._model.name).inc(future)
        if records and timestamps[-1] > 0 and not is_future[-1]:  # a producer may set no timestamp, which is -1 or 0
            self._metrics.delays.labels(self._model.name).observe(max(0.0, now - timestamps[-1] / 1000))
        recent = self._rejections
        if (has_changed := recent.add_records(records)) and recent.are_most:
            newest = self._model.status.set_aside[max(recent.reasons, key=recent.reasons.__getitem__)]
            key = "{topic}-{partition}-{offset}".format_map(newest)
            self._log.error(
                "most records are rejected, so little is learned: `perceptron suggest` says what to set",
                rejected=f"{sum(recent.reasons.values()):.0f} of the last {recent.records:.0f}",
                look=f"perceptron dead-letters show {key} -m {self._model.name}",
                **newest,
            )
        elif has_changed:
            self._log.info("most records are accepted again")
        self._metrics.slices.labels(self._model.name).observe(seconds)
        self._large |= seconds >= LARGE_RECORD_SECONDS * max(records, 1)

    def saved(self, saved: AcceptedSave) -> None:
        self._recovered("redis", "save")
        name, answering = self._model.name, self._model.answering
        self._metrics.snapshots.labels(name, "accepted").inc()
        self._metrics.snapshot_bytes.labels(name).inc(saved.written)
        self._metrics.saving.labels(name).observe(saved.seconds)
        if self._large or saved.written >= LARGE_SAVE_BYTES:
            self._large = False
            asyncio.get_running_loop().run_in_executor(None, release_memory)
        if answering and self._model.learning_here:
            self._model.answering = answering._replace(head=saved.head, digest=saved.digest)
            for name, candidate in answering.learner.candidates.items():
                if (reason := candidate.diverged) and self._first("diverged", name, reason):
                    self._log.error("candidate stopped learning; the others continue", candidate=name, reason=reason)
            if (join := saved.head.counts.join) and join["set_aside"] and self._first("set aside"):
                self._log.warning("records with timestamps far ahead of the others are set aside (logged once)")
            while takeovers := answering.learner.takeovers:
                self._log.info("another predictor answers", **asdict(takeovers.pop(0)))
            lines = advice(answering.learner)
            for kind, line in lines.items():
                if kind.startswith(LOGGED_ADVICE) and self._first(kind):
                    self._log.warning(f"{line} (logged once)")
            if (variance := lines.get("variance")) and self._first(variance):
                self._log.warning(variance)

    def rewound(self, cause: str) -> None:
        if cause == "refused":
            self._metrics.snapshots.labels(self._model.name, "refused").inc()
        self._metrics.rewinds.labels(self._model.name, cause).inc()
        # After a line that says who else saves the model, only the metric counts.
        if cause == "recreated" or all(what[0] != "outsider" for what in self._logged):
            self._log.warning(f"state dropped: {REWINDS[cause]}", cause=cause)

    def outside_writer(self, writer: Writer) -> None:
        if self._first("outsider", writer.group):
            self._log.error(
                "another consumer group also writes this model: the two keep overwriting each other: let one group "
                "learn it (kafka.group_id), or give the other another Redis database (redis.url)",
                group=writer.group,
                process=writer.process,
            )

    def reconciled(self, began: Sequence[str], dropped: Sequence[str], following: Mapping[PartitionId, int]) -> None:
        for name in dropped:
            why = "its settings changed, so it starts from scratch" if name in began else "it is not set any more"
            self._log.warning(f"candidate dropped: {why}", candidate=name)
        for name in began:
            self._log.info("candidate begins", candidate=name, next=by_text(following))

    def rebuilding(self, remembered: int, total: int) -> None:
        self._model.status.stopped = None
        self.waiting(f"what the join holds is read again: {remembered:,} of {total:,} offsets")

    def waiting(self, reason: str) -> None:
        status = self._model.status
        if reason and status.waits is None:
            self._log.info(reason)
        elif not reason and status.waits is not None:
            self._log.info("learning goes on")
        status.waits = reason or None

    def gaps_accepted(self, gaps: Sequence[Gap]) -> None:
        self._metrics.offset_gaps.labels(self._model.name).inc(len(gaps))
        if self._first("gaps"):
            self._log.info(
                "offsets without a batch: the topic is or was compacted (logged once)",
                **{**gaps[0]._asdict(), "partition": gaps[0].partition.as_json},
            )

    def snapshot_lost(self) -> None:
        self._log.error("the snapshot of this model has vanished from the store: learning the log again from its start")

    def fingerprint_missing(self, partition: PartitionId, offset: int) -> None:
        self._log.warning("the last learned record is gone: not compared", partition=partition.as_json, offset=offset)

    def set_aside(self, letter: Message) -> None:
        self._metrics.dead_letters.labels(self._model.name).inc()
        about = {name: (value or b"").decode(errors="replace") for name, value in letter.headers[:5]}
        self._rejections.add(about["reason"])
        self._model.status.set_aside[about["reason"]] = about
        if self._first("rejected", about["reason"]):  # the rest are in the metrics
            self._log.warning("event rejected (logged once a reason)", **about)

    def answered(self) -> None:
        self._recovered("kafka", "redis")

    def unavailable(self, error: DependencyError) -> None:
        self._miss(error.dependency, error, str(error))

    def save_failed(self, error: DependencyError) -> None:
        self._metrics.snapshots.labels(self._model.name, "failed").inc()
        self._miss("save", error, f"save failed: {error}")

    def stopped(self, error: Exception) -> None:
        if self._model.status.stopped != str(error):  # it is tried again and again
            self._log.error("learning stopped", reason=str(error))
            if isinstance(error, LogGap):
                self._metrics.gaps.labels(self._model.name).inc()
        self._model.status.stopped = str(error)

    def followed(self) -> None:
        self._recovered("redis")
        if not self._model.status.awaits_assignment():  # else our own learner says why it stopped
            self._model.status.stopped = None

    def unusable(self, error: DataError) -> None:
        self._recovered("redis")
        self._log.error("snapshot not usable; the model that answers stays", reason=str(error))

    def _first(self, *what: str) -> bool:
        """Whether this was not logged before."""
        new = what not in self._logged
        self._logged.add(what)
        return new

    def _miss(self, what: str, error: DependencyError, message: str) -> None:
        # A save that fails while its dependency is missing is the same outage, and the other way round: the log has the
        # line of what noticed it first.
        if all(dependency != error.dependency for _, dependency, _ in self._missing.values()):
            self._missing[what] = message, error.dependency, time.monotonic()
            self._log.error(message)

    def _recovered(self, *kinds: str) -> None:
        for what in kinds:
            if what in self._missing:
                was, _, since = self._missing.pop(what)
                self._log.info("answers again", was=was, seconds=round(time.monotonic() - since, 1))
