"""`perceptron` that signals itself at a point: `python -m tests.faults.failing POINT SIGNAL NTH REDIS run …`.

REDIS is the URL of the server itself; the service uses a proxy. SIGUSR1 blocks the event loop for 30 s,
SIGUSR2 turns the wall clock on by an hour, then back by two.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

BLOCK_SECONDS = 30.0
POINTS = ("before-blobs", "before-commit", "no-reply", "after-commit", "before-flush", "after-flush", "slice",
          "revocation")  # fmt: skip


class Clock:
    """The wall clock of this process."""

    def __init__(self) -> None:
        self._time, self._shift = time.time, 0.0
        time.time = self.time

    def time(self) -> float:
        return self._time() + self._shift

    def jump(self, *_: object) -> None:
        self._shift = 3600.0 if self._shift <= 0 else -3600.0
        print(f"the wall clock is off by {self._shift:.0f} s", file=sys.stderr, flush=True)


def block(*_: object) -> None:
    print(f"the event loop is blocked for {BLOCK_SECONDS:.0f} s", file=sys.stderr, flush=True)
    time.sleep(BLOCK_SECONDS)


def armed(point: str, number: signal.Signals, nth: int, redis: str) -> None:
    """Make the process send itself this signal when it reaches the point for the nth time."""
    from service.learning.learner import Learner
    from service.snapshots import keeper
    from service.snapshots.redis.store import RedisStore, key
    from service.streaming.kafka.membership.group import Kafka
    from service.streaming.kafka.topic import TopicLog

    if point in {"before-blobs", "before-commit"}:
        keeper.MAX_INLINE_BLOB_BYTES = -1  # as if there were much to save: blobs in commands of their own
    seen = 0

    def here(reached: str) -> None:
        nonlocal seen
        if reached == point:
            seen += 1
            if seen == nth:
                print(f"{number.name} at {point}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), number)

    def around(owner: type, name: str, before: str, after: str, when: Callable[..., bool] = lambda *_: True) -> None:
        method = getattr(owner, name)

        async def failing(self: Any, *arguments: Any) -> Any:
            counts = when(self, *arguments)
            if counts:
                here(before)
            answer = await method(self, *arguments)
            if counts:
                here(after)
            return answer

        setattr(owner, name, failing)

    # Typed as Any, since their methods are replaced.
    store: Any = RedisStore
    learner: Any = Learner
    commit, apply = store.commit, learner.apply

    async def unanswered(self: Any, model: str, new: Any) -> Any:
        """Reach the point as soon as another connection sees the head, whether or not the reply has come."""
        if point != "no-reply":
            return await commit(self, model, new)
        looking = RedisStore(redis)
        sent = asyncio.create_task(commit(self, model, new))
        while await looking._redis.hget(key(model), "digest") != new.digest.encode():
            pass
        here("no-reply")
        await looking.close()
        return await sent

    store.commit = unanswered
    around(RedisStore, "put", "before-blobs", "", lambda *given: bool(given[2]))
    around(RedisStore, "commit", "before-commit", "after-commit")
    around(TopicLog, "flush", "before-flush", "after-flush", lambda self: bool(self.outbox._letters))
    around(Kafka, "on_partitions_revoked", "revocation", "", lambda *given: bool(given[1]))

    def sliced(self: Learner, *arguments: Any) -> Any:
        outcome = apply(self, *arguments)
        here("slice")
        return outcome

    learner.apply = sliced


def main() -> None:
    """Arm the point, if there is one, and run `perceptron`."""
    point, name, nth, redis = sys.argv[1:5]
    del sys.argv[1:5]
    signal.signal(signal.SIGUSR1, block)
    signal.signal(signal.SIGUSR2, Clock().jump)
    if point != "-":
        assert point in POINTS, point
        armed(point, signal.Signals[name], int(nth), redis)
    from service.cli.app import main as perceptron

    perceptron()


if __name__ == "__main__":
    main()
