"""Faults of a trial's Redis, and queries for tests."""

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
"""The log line of a refused save, or of a head that is no longer current."""
COMMIT = b'"schema":'
"""Bytes of a head: only the command that commits a save contains them."""
EMPTIED = "learning the log again from its start"


@contextmanager
def client(trial: Trial) -> Iterator[Any]:
    """A client of the server, without the proxy."""
    with Redis(host="127.0.0.1", port=trial.redis.port) as redis:
        yield redis


def current(trial: Trial) -> str:
    """The digest of the current head, or ''."""
    with client(trial) as redis:
        return bytes(redis.hget(key(trial.topic), "digest") or b"").decode()


def count_in_logs(trial: Trial, words: str) -> int:
    """The number of occurrences of these words in the logs of the services."""
    return sum(service.log.read_text().count(words) for service in trial.services)


def saves(trial: Trial, result: str) -> float:
    """The number of saves with this result, summed over the live processes."""
    name = f'perceptron_snapshots_total{{model="{trial.topic}",result="{result}"}}'
    return sum(service.metrics()[name] for service in trial.live)


def wait_for_log(trial: Trial, words: str, times: int, description: str) -> None:
    """Wait until these words are in the logs this often."""
    wait(lambda: count_in_logs(trial, words) >= times, description)


def wait_for_failed_saves(trial: Trial, times: float) -> None:
    """Wait until this many saves have failed in all."""
    wait(lambda: saves(trial, "failed") >= times, "a save fails")


@contextmanager
def killed_redis(trial: Trial, policy: str | None = None) -> Iterator[Path]:
    """Kill Redis. The body may change its files. Then Redis starts, and services reach it once it is watched again."""
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


def copy_files(trial: Trial) -> tuple[Path, str]:
    """Copy the files; returns the copy, and the digest of a head in it."""
    digest = current(trial)
    return Path(shutil.copytree(files(trial), trial.folder / "copy")), digest


def restore_files(copy: Path, folder: Path) -> None:
    """Replace the files by the copy."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def cut_off(folder: Path, share: float) -> None:
    """Cut this share off the end of the newest file, but at least three bytes."""
    newest = max(folder.glob("*.incr.aof"), key=lambda file: int(re.findall(r"\.(\d+)\.incr", file.name)[0]))
    size = newest.stat().st_size
    os.truncate(newest, size - max(3, int(size * share)))


def at_commit(trial: Trial, call: Callable[[], object]) -> None:
    """Call the function once, just before the next save is committed.

    An accepted commit that is repeated because its reply was lost does not count.
    """

    def before_commit(message: bytes) -> bool:
        is_new = COMMIT in message and f'"parent":"{current(trial)}"'.encode() in message
        if is_new:
            call()
        return is_new

    trial.redis_proxy.before = before_commit


def lose_reply_to_save(trial: Trial) -> None:
    """Let the next accepted save lose its reply; returns once it is accepted."""
    previous: list[str] = []

    def drop_replies() -> None:
        previous.append(current(trial))
        trial.redis_proxy.dropping = True

    at_commit(trial, drop_replies)
    wait(lambda: previous and current(trial) != previous[0], "a save is accepted")
