"""`perceptron config` and `perceptron check`: what is set and where it came from, and whether it can work."""

import asyncio
import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import typer

from service.errors import DataError, DependencyError, PerceptronError
from service.settings import Settings, settings_file
from service.snapshots.store import RedisStore
from service.streaming.coordinator import coordinator
from service.streaming.dead_letters import topic_of
from service.streaming.topic_id import too_old
from service.tools.newest import judge_newest


def show_config(settings: Settings, flags: set[str], as_json: bool) -> None:
    """Print each setting, its value and its origin; a password is masked."""
    file = settings_file()
    written = tomllib.loads(file.read_text()) if file.is_file() else {}
    rows = [(path, _masked(path, value), _origin(path, written, file, flags)) for path, value in _flat(settings)]
    if as_json:
        import json

        typer.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}))
        return
    width = max(len(path) for path, _, _ in rows)
    for path, value, origin in rows:
        typer.echo(f"{path:{width}}  {'-' if value is None else value!s:<36} {origin}")


def _flat(settings: Settings) -> Iterator[tuple[str, Any]]:
    def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from walk(inner, f"{path}.{name}" if path else name)
        else:
            yield path, value

    yield from walk(settings.model_dump(mode="json", exclude={"model"}), "")


def _origin(path: str, written: Any, file: Path, flags: set[str]) -> str:
    if path in flags:
        return "flag"
    parts = path.split(".")
    # A model's setting may come from [model], the defaults of all.
    candidates = [parts] + ([["model", *parts[2:]]] if parts[0] == "models" and len(parts) > 2 else [])
    for names in candidates:
        # A section may be given whole, as JSON.
        for depth in range(1, len(names) + 1):
            variable = f"PERCEPTRON_{'__'.join(names[:depth])}".upper()
            if variable in {name.upper() for name in os.environ}:
                return f"environment {variable}"
    for names in candidates:
        found = written
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return str(file)
    return "default"


def _masked(path: str, value: Any) -> Any:
    if path != "redis.url":
        return value
    parts = urlsplit(value)
    if parts.password is None:
        return value
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"))


def check(settings: Settings) -> int:
    """Print one line for each thing that must work; returns the exit code."""
    failed = asyncio.run(_check(settings))
    return max((error.exit_code for error in failed), default=0)


async def _check(settings: Settings) -> list[PerceptronError]:
    found: list[PerceptronError] = []
    try:
        settings.check_work()
        typer.echo(f"ok    settings: {len(settings.topics)} topic{'s' * (len(settings.topics) != 1)}")
    except PerceptronError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    for warning in settings.ignored:
        typer.echo(f"warn  {warning}")
    try:
        async with RedisStore(settings.redis.url) as store:
            warnings = await store.check(settings.learn)
        typer.echo(f"ok    Redis at {store.address}")
        for warning in warnings:
            typer.echo(f"warn  {warning}")
    except PerceptronError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    if not settings.learn:
        return found
    cluster = settings.kafka.cluster
    try:
        async with cluster.admin() as client:
            topics, old = set(await client.list_topics()), await too_old(client._client)
    except DependencyError as error:
        typer.echo(f"fail  {error}")
        return [*found, error]
    typer.echo(f"ok    {cluster}")
    if old:
        typer.echo(f"warn  {old}")
    group = settings.kafka.group_id
    try:
        answering = await coordinator(cluster, group, settings.kafka.session_timeout)
        typer.echo(f"ok    group {group}: broker {answering.broker} coordinates it")
    except DependencyError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    for topic in settings.topics:
        for name in (topic, topic_of(topic)):
            if name in topics:
                typer.echo(f"ok    topic {name}")
            elif settings.create_topics:
                typer.echo(f"ok    topic {name} will be created")
            else:
                said = f"topic {name} does not exist: create it, or run with --create-topics"
                typer.echo(f"fail  {said}")
                found.append(PerceptronError(said))
    return found + await _check_records(settings, topics)


async def _check_records(settings: Settings, topics: Iterable[str]) -> list[PerceptronError]:
    """A line for each topic that is learned: how many of its last records its model would accept."""
    found: list[PerceptronError] = []
    for topic in sorted(topics):
        if topic in settings.listed or settings.wanted(topic):
            try:
                level, said = await judge_newest(settings.kafka.cluster, topic, settings.of(topic).identity())
            except PerceptronError as error:
                level, said = "fail", str(error)
                found.append(error)
            else:
                found += [DataError(said)] if level == "fail" else []
            typer.echo(f"{level:<4}  topic {topic}: {said}")
    return found
