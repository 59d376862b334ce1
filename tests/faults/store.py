"""What tests do to the Redis of a trial, and what they read in it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from service.snapshots.redis.store import key
from tests.conftest import wait
from tests.faults.trial import Trial

DROPPED = "state dropped"
"""What a service says when a save was refused, or its head is not current any more."""
COMMIT = b'"schema":'
"""In the command that commits a save, and in no other: the head."""
EMPTIED = "learning the log again from its start"


@contextmanager
def client(trial: Trial) -> Iterator[Any]:
    """A client of the server itself, past the proxy."""
    with Redis(host="127.0.0.1", port=trial.redis.port) as redis:
        yield redis


def current(trial: Trial) -> str:
    """The digest of the current head, or ''."""
    with client(trial) as redis:
        return bytes(redis.hget(key(trial.topic), "digest") or b"").decode()


def said(trial: Trial, words: str) -> int:
    """How often the services said these words."""
    return sum(service.log.read_text().count(words) for service in trial.services)


def saves(trial: Trial, result: str) -> float:
    """How many saves ended so, as the live processes count them."""
    name = f'perceptron_snapshots_total{{model="{trial.topic}",result="{result}"}}'
    return sum(service.metrics()[name] for service in trial.live)


def heard(trial: Trial, words: str, times: int, what: str) -> None:
    """Wait until the services have said so that often."""
    wait(lambda: said(trial, words) >= times, what)


def save_fails(trial: Trial, times: float) -> None:
    """Wait until so many saves have failed in all."""
    wait(lambda: saves(trial, "failed") >= times, "a save fails")


@contextmanager
def away(trial: Trial, policy: str | None = None) -> Iterator[Path]:
    """Redis is killed. The body may change its files; then it starts, and is reached as soon as it is watched."""
    trial.redis.kill()
    trial.redis_proxy.refuse()
    yield files(trial)
    trial.redis.start()

    def loaded() -> bool:
        try:
            with client(trial) as redis:
                return bool(redis.ping())
        except RedisError:
            return False

    wait(loaded, "Redis has loaded its files")
    if policy:
        appendfsync(trial, policy)
    trial.look_again()
    trial.redis_proxy.heal()


def files(trial: Trial) -> Path:
    """Where Redis keeps its append-only files."""
    return trial.folder / "redis" / "appendonlydir"


def appendfsync(trial: Trial, policy: str) -> None:
    """When Redis forces its file to the disk."""
    with client(trial) as redis:
        redis.config_set("appendfsync", policy)


def copied(trial: Trial) -> tuple[Path, str]:
    """A copy of the files as they are, and a head that is in it, with those before."""
    digest = current(trial)
    return Path(shutil.copytree(files(trial), trial.folder / "copy")), digest


def put_back(copy: Path, folder: Path) -> None:
    """The copy in place of what is there."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def cut_off(folder: Path, part: float) -> None:
    """Cut this part of the newest file off its end, or three bytes."""
    newest = max(folder.glob("*.incr.aof"), key=lambda file: int(re.findall(r"\.(\d+)\.incr", file.name)[0]))
    size = newest.stat().st_size
    os.truncate(newest, size - max(3, int(size * part)))


def at_commit(trial: Trial, call: Callable[[], object]) -> None:
    """When the next save is about to be committed, call this once before.

    Not when one is said again that is accepted already: its client did not hear of it, and asks once more at any time.
    """

    def reached(message: bytes) -> bool:
        new = COMMIT in message and f'"parent":"{current(trial)}"'.encode() in message
        if new:
            call()
        return new

    trial.redis_proxy.before = reached


def accepted_unheard(trial: Trial) -> None:
    """The next save is accepted, and nobody hears of it."""
    before: list[str] = []

    def deafen() -> None:
        before.append(current(trial))
        trial.redis_proxy.dropping = True

    at_commit(trial, deafen)
    wait(lambda: before and current(trial) != before[0], "a save is accepted")
