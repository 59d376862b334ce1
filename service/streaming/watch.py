"""Kafka looked at once a second, whether or not anything comes: figures that the poll kept would freeze with it.

- Where each topic ends that is held here. A standby, which holds none, asks whether Kafka answers at all.
- Whether this process is in its group, and if not for a while, why not.
- Whether it is the client that hangs: its looks fail, and a fresh connection is answered.

What is missing is said once, and is in the metrics since when.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.errors import DependencyError, Stuck
from service.streaming.cluster import Cluster
from service.streaming.coordinator import coordinator

if TYPE_CHECKING:
    from service.streaming.topic import TopicLog

LOOK_SECONDS = 1.0
"""Between two looks, and so the age of the lag that is shown."""
OUTSIDE_SECONDS = 3.0
"""So long a process may be outside its group, to join or to find the coordinator, before it is asked why."""


class Watch:
    """What Kafka owes to this process."""

    def __init__(
        self, cluster: Cluster, group: str, say: Callable[..., None], session_timeout: float, watchdog: float
    ) -> None:
        self.missing_since = 0.0
        """Since when Kafka, or the group's coordinator, does not answer (seconds since 1970); 0 while both do."""
        self.joined = False
        """The group has told us what is ours, be it nothing, and has not taken it back."""
        self._cluster, self._group, self._say = cluster, group, say
        self._session_timeout, self._watchdog = session_timeout, watchdog
        self._told = set[str]()
        """Why Kafka does not answer, since it did last."""
        self._said = ""
        """Of the group, since we were in it."""
        self._failing: dict[str, float | None] = {}
        """Topics whose last look failed -> since when a fresh connection is answered while all of their looks fail."""

    async def run(self, consumer: Any, logs: Mapping[str, "TopicLog"]) -> None:
        """Look for as long as the process runs; raises Stuck."""
        outside = time.monotonic()
        while True:
            missing = await self._look(list(logs.values()))
            if missing and (not self.missing_since or (self._is_ours(missing) and str(missing) not in self._told)):
                self._told.add(str(missing))
                self._say(str(missing))
            inside = self.joined and consumer._coordinator.coordinator_id is not None
            if inside:
                self._said = ""
            if inside or missing or not consumer.subscription():
                outside = time.monotonic()
            elif (seconds := time.monotonic() - outside) > OUTSIDE_SECONDS:
                missing = await self._why_outside(seconds)
            if missing:
                self.missing_since = self.missing_since or time.time()
            elif self.missing_since:
                self._say("Kafka answers again", seconds=round(time.time() - self.missing_since, 1))
                self.missing_since = 0.0
                self._told.clear()
            await self._hangs(logs)
            await asyncio.sleep(LOOK_SECONDS)

    @staticmethod
    def _is_ours(missing: DependencyError) -> bool:
        """Whether we are to change something, so that it is said also where it comes in the middle of an outage."""
        return any(f": {step}: " in str(missing) for step in ("TLS", "SASL", "authorisation"))

    async def _look(self, logs: Sequence["TopicLog"]) -> DependencyError | None:
        """Look where the topics end; the error, where it is so of each that is held here, or nothing answers at all."""
        held = sum(bool(log.assigned) for log in logs)
        # Side by side: one topic that was deleted must not make the others' figures late.
        looks = await asyncio.gather(*(log.look() for log in logs), return_exceptions=True)
        for found in looks:
            if isinstance(found, BaseException) and not isinstance(found, DependencyError):
                raise found
        failed = {log.topic: e for log, e in zip(logs, looks, strict=True) if isinstance(e, DependencyError)}
        self._failing = {topic: self._failing.get(topic) for topic in failed}
        if not held:
            try:
                await self._cluster.answers()
            except DependencyError as error:
                return error
        return next(iter(failed.values())) if failed and len(failed) >= held else None

    async def _why_outside(self, seconds: float) -> DependencyError | None:
        """Why we are not in the group; None where its coordinator answers, so that we are to wait."""
        try:
            found = await coordinator(self._cluster, self._group, self._session_timeout)
        except DependencyError as error:
            self._say_once(str(error))
            return error
        if seconds > 1.5 * self._session_timeout:  # a member that was killed is waited for so long
            self._say_once(
                f"group {self._group} has not let this process in yet, though its coordinator, broker {found.broker}, "
                f"answers: it is {found.state}, in Kafka's words, so another member is slow to join again"
            )
        return None

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    async def _hangs(self, logs: Mapping[str, "TopicLog"]) -> None:
        """Raises Stuck where looks have failed for long, and a fresh connection was answered all that time."""
        if not self._failing:
            return
        asked = {topic: logs[topic].assigned for topic in self._failing if logs[topic].assigned}
        answered = await self._cluster.answered_afresh(asked) if asked else set()
        now = time.monotonic()
        for topic, since in self._failing.items():
            if topic not in answered:
                self._failing[topic] = None
            elif since is None:
                self._failing[topic] = now
            elif now - since > self._watchdog:
                raise Stuck(
                    f"topic {topic}: {self._cluster} answers a fresh connection, but not the client's own "
                    f"for {now - since:.0f} s (kafka.watchdog): the process ends, so that a fresh one goes on"
                )
