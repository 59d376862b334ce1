"""`python -m bench.altered HOW …`: `perceptron`, altered so that a part of it can be measured.

`marked:FILE` writes for each check whether a save is due: events, CPU seconds and clock seconds so far, and the result.
`timed:EVENTS:FILE` writes the CPU microseconds of an event, by part and as a whole, after the first tenth of EVENTS.
"""

import asyncio
import atexit
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.cli.app import main
from service.learning.classifier import Classifier
from service.learning.columns.columns import Columns
from service.learning.events.event_reader import EventReader
from service.learning.learner import Learner
from service.snapshots.keeper import Keeper

PARTS: tuple[tuple[type, str, str], ...] = (
    (EventReader, "read", "read"),
    (Columns, "assign_columns", "columns"),
    (Classifier, "learn", "kernel"),
    (Classifier, "count", "watch"),
)
"""The method of each part, called for a slice. Time in a nested part counts only there; a part without calls is 0."""


def _marked(file: Path) -> None:
    marks, is_due = list[tuple[float, ...]](), Keeper.due

    def mark(keeper: Keeper, learner: Learner) -> bool:
        saves = is_due(keeper, learner)
        marks.append((learner.main.counts.events, time.process_time(), time.monotonic(), saves))
        return saves

    Keeper.due = mark  # type: ignore[method-assign,assignment]
    atexit.register(lambda: file.write_text(json.dumps(marks)))


class _Steps:
    """A coroutine whose steps are measured: code that runs while it waits is not counted."""

    def __init__(self, coroutine: Any, measured: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.send, self.throw, self.close = measured(coroutine.send), measured(coroutine.throw), coroutine.close

    def __await__(self) -> "_Steps":
        return self

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> Any:
        return self.send(None)


class _Timed:
    """Measures the seconds of each part without those of parts within it."""

    def __init__(self, events: int, file: Path) -> None:
        self._events, self._file = events, file
        self._seconds: dict[str, float] = {}
        self._within = [0.0]
        self._learned, self._began = 0, (0, 0.0)
        for owner, name, part in PARTS:
            if hasattr(owner, name):
                setattr(owner, name, self._measured(getattr(owner, name), part))
        saves, in_thread = Keeper.save, asyncio.to_thread

        async def save(*arguments: Any) -> Any:
            return await _Steps(saves(*arguments), lambda step: self._measured(step, "saving"))

        async def to_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            return await in_thread(self._alone, function, *arguments, **named)

        Keeper.save, asyncio.to_thread = save, to_thread  # type: ignore[method-assign,assignment]
        Learner.apply = self._followed(self._measured(Learner.apply, "fold"))  # type: ignore[method-assign]

    def _measured(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def measured(*arguments: Any, **keywords: Any) -> Any:
            began = time.thread_time()
            self._within.append(0.0)
            try:
                return method(*arguments, **keywords)
            finally:
                took = time.thread_time() - began
                own_seconds = took - self._within.pop()
                self._within[-1] += took
                self._seconds[part] = self._seconds.get(part, 0.0) + own_seconds

        return measured

    def _alone(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Measure a function that a save runs in a thread, where no other measured code runs."""
        began = time.thread_time()
        try:
            return function(*arguments, **keywords)
        finally:
            self._seconds["thread"] = self._seconds.get("thread", 0.0) + time.thread_time() - began

    def _followed(self, apply: Callable[..., Any]) -> Any:
        def followed(*arguments: Any, **keywords: Any) -> Any:
            outcome = apply(*arguments, **keywords)
            self._learned += outcome.consumed
            if not self._began[0] and self._learned >= self._events // 10:
                self._seconds.clear()
                self._began = self._learned, time.process_time()
            elif self._began[0] and self._learned >= self._events:
                whole_seconds = time.process_time() - self._began[1]
                seconds = {"whole": whole_seconds, **self._seconds}
                events = self._learned - self._began[0]
                self._file.write_text(json.dumps({part: s / events * 1e6 for part, s in seconds.items()}))
                self._events = sys.maxsize
            return outcome

        return followed


if __name__ == "__main__":
    how, *arguments = sys.argv.pop(1).split(":")
    if how == "timed":
        _Timed(int(arguments[0]), Path(arguments[1]))
    else:
        _marked(Path(arguments[0]))
    sys.argv[0] = "perceptron"
    main()
