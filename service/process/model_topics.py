"""The topics that requests write to: logs of predictions, and events and labels that are posted."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

from service.monitoring.metrics import Metrics
from service.serving.models import Models
from service.serving.posting import Posting, PredictionLog
from service.settings.load import Settings
from service.settings.model import is_topic
from service.streaming.kafka.topic_writer import TopicWriter

FLUSH_SECONDS = 2.0
"""Time for the last records at a stop."""


class ModelTopics:
    """The topics of a process's models. A writer exists from the first request that needs it on."""

    def __init__(self, settings: Settings, models: Models, metrics: Metrics, logger: Any) -> None:
        self._settings, self._models, self._metrics = settings, models, metrics
        self._warn_once = cache(logger.warning)
        self.run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.create_task
        """Starts a task that writes."""
        self._writing: dict[TopicWriter, asyncio.Task[None]] = {}
        self._logs: list[PredictionLog] = []
        self._writer, self._posting = cache(self._new_writer), cache(self._new_posting)
        self.log_of = cache(self._new_log)
        """Returns the log of a model's predictions, None if they are not logged."""

    def posting_of(self, model: str) -> Posting | None:
        """How events and labels of a model are posted; None if there is no such model, or if it never learns."""
        return self._posting(model) if self._models.get(model) and is_topic(model) else None

    def _new_writer(self, topic: str) -> TopicWriter:
        writer = TopicWriter(self._settings.kafka.cluster, topic, self._settings.create_topics, self._warn_once)
        self._writing[writer] = self.run(writer.run())
        return writer

    def _new_log(self, model: str) -> PredictionLog | None:
        own = self._settings.model_settings(model)
        if (log := own.predictions) is None:
            return None
        counter = self._metrics.logged
        self._logs.append(PredictionLog(model, own.identity(), self._writer(log.topic), log.share, counter))
        return self._logs[-1]

    def _new_posting(self, model: str) -> Posting | None:
        own = self._settings.model_settings(model)
        if own.rule == "threshold-unit":
            return None
        topics = self._settings.topics_of(model)
        labels = self._writer(topics[-1]) if own.join else None
        share = own.predictions.share if own.predictions else 1.0
        return Posting(own.identity(), self._writer(topics[0]), labels, share)

    async def end(self) -> bool:
        """Write the last records, and stop writing; returns whether all were written."""
        for log in self._logs:
            log.flush()
        flushes = [asyncio.create_task(writer.flush()) for writer in self._writing]
        _, late = await asyncio.wait(flushes, timeout=FLUSH_SECONDS) if flushes else ((), ())
        for task in (*late, *self._writing.values()):
            task.cancel()
        return not late
