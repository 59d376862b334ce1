"""`python -m bench.altered HOW …`: the command, altered so that a part of it can be measured.

`marked:FILE` writes, of each time that a save may come: events, seconds of the processor and of the clock so far, and
whether one does.
`timed:EVENTS:FILE` writes how many microseconds of the processor an event took by part, and as a whole, after the first
tenth of so many.
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
from service.learning.columns.columns import Hashed, Named, Positional
from service.learning.events.batch import Decoder
from service.learning.learner import Learner
from service.snapshots.keeper import Keeper

PARTS: tuple[tuple[type, str, str], ...] = (
    (Decoder, "decode", "decode"),
    *((columns, name, "place") for columns in (Named, Hashed, Positional) for name in ("place", "place_rows")),
    (Learner, "learn", "kernel"),
    (Learner, "count", "watch"),
)
"""What does a part, a slice at a time. What `decode` has placed is no part of it; a part that is not called is 0."""


def _marked(file: Path) -> None:
    marks, due = list[tuple[float, ...]](), Keeper.due

    def marked(keeper: Keeper, learner: Learner) -> bool:
        saves = due(keeper, learner)
        marks.append((learner.counts.events, time.process_time(), time.monotonic(), saves))
        return saves

    Keeper.due = marked  # type: ignore[method-assign,assignment]
    atexit.register(lambda: file.write_text(json.dumps(marks)))


class _Steps:
    """A coroutine whose steps are handed to what measures them: what runs while it waits is no part of it."""

    def __init__(self, coroutine: Any, measured: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.send, self.throw, self.close = measured(coroutine.send), measured(coroutine.throw), coroutine.close

    def __await__(self) -> "_Steps":
        return self

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> Any:
        return self.send(None)


class _Timed:
    """Seconds of each part, less those of parts within it."""

    def __init__(self, events: int, file: Path) -> None:
        self._events, self._file = events, file
        self._seconds: dict[str, float] = {}
        self._within = [0.0]
        self._learned, self._began = 0, (0, 0.0)
        for of, name, part in PARTS:
            if hasattr(of, name):
                setattr(of, name, self._measured(getattr(of, name), part))
        saves, in_thread = Keeper.save, asyncio.to_thread

        async def save(*arguments: Any) -> Any:
            return await _Steps(saves(*arguments), lambda step: self._measured(step, "saving"))

        async def to_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            return await in_thread(self._alone, function, *arguments, **named)

        Keeper.save, asyncio.to_thread = save, to_thread  # type: ignore[method-assign,assignment]
        Learner.apply = self._followed(self._measured(Learner.apply, "fold"))  # type: ignore[method-assign]

    def _measured(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            self._within.append(0.0)
            try:
                return method(*arguments, **named)
            finally:
                took = time.thread_time() - began
                own = took - self._within.pop()
                self._within[-1] += took
                self._seconds[part] = self._seconds.get(part, 0.0) + own

        return measured

    def _alone(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """In a thread, where nothing else of ours runs: what a save hands to one."""
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            self._seconds["thread"] = self._seconds.get("thread", 0.0) + time.thread_time() - began

    def _followed(self, apply: Callable[..., Any]) -> Any:
        def followed(*arguments: Any, **named: Any) -> Any:
            outcome = apply(*arguments, **named)
            self._learned += outcome.consumed
            if not self._began[0] and self._learned >= self._events // 10:
                self._seconds.clear()
                self._began = self._learned, time.process_time()
            elif self._began[0] and self._learned >= self._events:
                whole = time.process_time() - self._began[1]
                found = {"whole": whole, **self._seconds}
                events = self._learned - self._began[0]
                self._file.write_text(json.dumps({part: s / events * 1e6 for part, s in found.items()}))
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
