"""`perceptron` that sends itself a signal: `python -m tests.faults.failing POINT SIGNAL NTH REDIS run …`.

REDIS is the URL of the server itself; the service uses a proxy. SIGUSR1 blocks the event loop for 30 s,
SIGUSR2 sets the wall clock an hour ahead, and then two hours back.
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


def arm(point: str, number: signal.Signals, nth: int, redis: str) -> None:
    """Make the process send itself this signal when it reaches the point for the nth time."""
    from service.learning.learner import Learner
    from service.snapshots import keeper
    from service.snapshots.redis.store import RedisStore, key
    from service.streaming.kafka.membership.group import GroupMember
    from service.streaming.kafka.model_log import ModelLog

    if point in {"before-blobs", "before-commit"}:
        keeper.MAX_INLINE_BLOB_BYTES = -1  # as for a large save: blobs in separate commands
    arrivals = 0

    def reach(reached: str) -> None:
        nonlocal arrivals
        if reached == point:
            arrivals += 1
            if arrivals == nth:
                print(f"{number.name} at {point}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), number)

    def surround(owner: type, name: str, before: str, after: str, when: Callable[..., bool] = lambda *_: True) -> None:
        method = getattr(owner, name)

        async def failing(self: Any, *arguments: Any) -> Any:
            counts = when(self, *arguments)
            if counts:
                reach(before)
            answer = await method(self, *arguments)
            if counts:
                reach(after)
            return answer

        setattr(owner, name, failing)

    # Typed as Any, since their methods are replaced.
    store: Any = RedisStore
    learner: Any = Learner
    commit, apply = store.commit, learner.apply

    async def commit_observed(self: Any, model: str, new: Any) -> Any:
        """Reach the point as soon as another connection sees the head, whether or not the reply has arrived."""
        if point != "no-reply":
            return await commit(self, model, new)
        observer = RedisStore(redis)
        async with observer:
            commit_task = asyncio.create_task(commit(self, model, new))
            while await observer._redis.hget(key(model), "digest") != new.digest.encode():
                pass
            reach("no-reply")
        return await commit_task

    store.commit = commit_observed
    surround(RedisStore, "put", "before-blobs", "", lambda *arguments_: bool(arguments_[2]))
    surround(RedisStore, "commit", "before-commit", "after-commit")
    surround(ModelLog, "flush", "before-flush", "after-flush", lambda self: bool(self.dead_letters._messages))
    surround(GroupMember, "on_partitions_revoked", "revocation", "", lambda *arguments_: bool(arguments_[1]))

    def apply_slice(self: Learner, *arguments: Any) -> Any:
        outcome = apply(self, *arguments)
        reach("slice")
        return outcome

    learner.apply = apply_slice


def main() -> None:
    """Arm the point, if there is one, and run `perceptron`."""
    point, name, nth, redis = sys.argv[1:5]
    del sys.argv[1:5]
    signal.signal(signal.SIGUSR1, block)
    signal.signal(signal.SIGUSR2, Clock().jump)
    if point != "-":
        assert point in POINTS, point
        arm(point, signal.Signals[name], int(nth), redis)
    from service.cli.app import main as perceptron

    perceptron()


if __name__ == "__main__":
    main()
