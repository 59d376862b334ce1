"""Changes of a trial's Redis, and what tests read in it."""

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
"""The log line of a refused save, or of a head that is not current any more."""
COMMIT = b'"schema":'
"""Bytes of the head, which only the command that commits a save contains."""
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
    """How often these words are in the logs of the services."""
    return sum(service.log.read_text().count(words) for service in trial.services)


def saves(trial: Trial, result: str) -> float:
    """The number of saves with this result, as the live processes count them."""
    name = f'perceptron_snapshots_total{{model="{trial.topic}",result="{result}"}}'
    return sum(service.metrics()[name] for service in trial.live)


def heard(trial: Trial, words: str, times: int, what: str) -> None:
    """Wait until these words are in the logs this often."""
    wait(lambda: said(trial, words) >= times, what)


def save_fails(trial: Trial, times: float) -> None:
    """Wait until this many saves have failed in all."""
    wait(lambda: saves(trial, "failed") >= times, "a save fails")


@contextmanager
def away(trial: Trial, policy: str | None = None) -> Iterator[Path]:
    """Kill Redis. The body may change its files. Then it starts, and services reach it once it is watched."""
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
    """The folder of the append-only files."""
    return trial.folder / "redis" / "appendonlydir"


def appendfsync(trial: Trial, policy: str) -> None:
    """Set when Redis forces its file to the disk."""
    with client(trial) as redis:
        redis.config_set("appendfsync", policy)


def copied(trial: Trial) -> tuple[Path, str]:
    """A copy of the files, and the digest of a head that it contains."""
    digest = current(trial)
    return Path(shutil.copytree(files(trial), trial.folder / "copy")), digest


def put_back(copy: Path, folder: Path) -> None:
    """Replace the files by the copy."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def cut_off(folder: Path, part: float) -> None:
    """Cut this part off the end of the newest file, or at least three bytes."""
    newest = max(folder.glob("*.incr.aof"), key=lambda file: int(re.findall(r"\.(\d+)\.incr", file.name)[0]))
    size = newest.stat().st_size
    os.truncate(newest, size - max(3, int(size * part)))


def at_commit(trial: Trial, call: Callable[[], object]) -> None:
    """Call this once, just before the next save is committed.

    A commit that was accepted and is sent again, because its reply was lost, does not count.
    """

    def reached(message: bytes) -> bool:
        new = COMMIT in message and f'"parent":"{current(trial)}"'.encode() in message
        if new:
            call()
        return new

    trial.redis_proxy.before = reached


def accepted_unheard(trial: Trial) -> None:
    """Wait until a save is accepted, whose reply is lost."""
    before: list[str] = []

    def deafen() -> None:
        before.append(current(trial))
        trial.redis_proxy.dropping = True

    at_commit(trial, deafen)
    wait(lambda: before and current(trial) != before[0], "a save is accepted")
