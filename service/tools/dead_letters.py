"""`perceptron dead-letters list|show|retry`: look at the records that were set aside, and send them again.

A retry publishes the record's own bytes, key and headers to its topic, then a marker under the letter's key, so that no
letter is retried twice. The record comes first: if the process is killed in between, the record is sent twice, which is
better than losing it.
"""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import typer

from service.errors import ConfigurationError, DataError
from service.learning.events.read_events import REASONS, Reject
from service.learning.events.value_formats import ValueBuffer, ValueFormat
from service.learning.learner import Learner
from service.learning.records import PartitionId, Records
from service.settings.load import Settings
from service.streaming.dead_letters import RETRIED_HEADER, TRUNCATION_HEADERS, dead_letter_topic, own_headers
from service.streaming.kafka.cluster import MAX_MESSAGE_BYTES
from service.text import quantity


class Letter(NamedTuple):
    """A dead letter as it was read; `retried` is the place to which it was sent again."""

    key: str
    time: int
    """The timestamp of its record, in milliseconds."""
    about: dict[str, str]
    record_key: bytes | None
    value: bytes | None
    value_format: ValueFormat
    headers: list[tuple[str, bytes | None]]
    retried: str | None = None

    @property
    def truncated(self) -> str:
        """The parts that the letter lacks of its record, which then cannot be sent again; '' if it is whole."""
        about = self.about
        return ", ".join(text.format(about[name]) for name, text in TRUNCATION_HEADERS.items() if name in about)


async def show_list(settings: Settings, model: str, reason: str | None, limit: int, as_json: bool) -> None:
    """Print the newest letters, a line each, oldest first."""
    letters = await _read(settings, model, reason)
    for letter in letters[-limit:]:
        when = datetime.fromtimestamp(letter.time / 1000, UTC).isoformat(timespec="seconds")
        if as_json:
            row = {"key": letter.key, "written": when, **letter.about, "retried": letter.retried}
            typer.echo(json.dumps(row, ensure_ascii=False))
        else:
            note = f"  (retried as {letter.retried})" if letter.retried else ""
            typer.echo(f"{letter.key}  {when}  {letter.about['reason']}: {letter.about['detail']}{note}")
    typer.echo(f"{quantity(len(letters), 'dead letter')} of {model}", err=True)


async def show_one(settings: Settings, model: str, key: str) -> None:
    """Print one letter whole: why the record was rejected, its headers and key, then its value."""
    [letter] = _with_keys(await _read(settings, model), [key])
    for name, value in letter.about.items():
        if name not in TRUNCATION_HEADERS:
            typer.echo(f"{name}: {value}")
    if letter.truncated:
        typer.echo(f"cut: {letter.truncated}")
    for name, content in letter.headers:
        typer.echo(f"header {name}: {(content or b'').decode(errors='backslashreplace')}")
    if letter.record_key is not None:
        typer.echo(f"key: {letter.record_key.decode(errors='backslashreplace')}")
    if letter.retried:
        typer.echo(f"retried as: {letter.retried}")
    typer.echo("value: none" if letter.value is None else letter.value.decode(errors="backslashreplace"))


async def retry(settings: Settings, model: str, keys: list[str], every: bool, reason: str | None) -> None:
    """Send letters again: those with these keys, or all (with this reason) that were not sent again yet.

    Without keys, the model's settings first read each letter: one that they reject is left alone.
    """
    if bool(keys) == (every or reason is not None):
        raise ConfigurationError("dead-letters retry: name keys, or say --all or --reason, but not both")
    letters = await _read(settings, model, reason)
    letters = _with_keys(letters, keys) if keys else letters
    cluster, own, sent, failures = settings.kafka.cluster, settings.model_settings(model), 0, Counter[str]()
    learner = None if keys else Learner(own.identity(), options=own.options(), start=own.start_weights)
    producer = cluster.producer(enable_idempotence=True, max_request_size=MAX_MESSAGE_BYTES)
    async with cluster.errors(right="Write"), cluster.open_clients(producer):
        for letter in letters:
            # The client writes no record without value and key: such a record is sent with an empty value.
            value = b"" if letter.value is None and letter.record_key is None else letter.value
            if letter.retried:
                typer.echo(f"{letter.key}  left alone: sent before, as {letter.retried}")
            elif letter.truncated:
                typer.echo(f"{letter.key}  left alone: it is not whole ({letter.truncated})")
            elif learner and (reject := _read_again(learner, letter)):
                typer.echo(f"{letter.key}  left alone: it would fail again ({reject.reason}: {reject.detail})")
                failures[reject.reason] += 1
            else:
                topic, time = letter.about["topic"], letter.time  # its record's, by which `once` knows it
                record = await producer.send_and_wait(topic, value, letter.record_key, None, time, letter.headers)
                place = f"{topic}-{record.partition}-{record.offset}"
                mark = [(RETRIED_HEADER, place.encode())]
                await producer.send_and_wait(dead_letter_topic(model), b"", letter.key.encode(), headers=mark)
                typer.echo(f"{letter.key}  sent as {place}")
                sent += 1
    topics = sorted({letter.about["topic"] for letter in letters}) or [model]
    left = "".join(f"; {count} would fail again: {reason}" for reason, count in failures.items())
    typer.echo(f"{sent} of {len(letters)} sent again to {', '.join(topics)}{left}", err=True)


def _read_again(learner: Learner, letter: Letter) -> Reject | None:
    """Why this learner would reject the letter's record, if it would."""
    value = ValueBuffer.from_values([letter.value], [letter.value_format])
    events, labels, _ = learner.read(Records.from_values(0, value, PartitionId(0, letter.about["topic"])))
    return next(iter([*events.rejects, *labels.rejects]), None)


def _with_keys(letters: list[Letter], keys: list[str]) -> list[Letter]:
    by_key = {letter.key: letter for letter in letters}
    if missing := [key for key in keys if key not in by_key]:
        raise DataError(f"no dead letter {missing[0]}; `perceptron dead-letters list` shows them")
    return [by_key[key] for key in dict.fromkeys(keys)]


async def _read(settings: Settings, model: str, reason: str | None = None) -> list[Letter]:
    """The letters of a model (with this reason), once each, in the order in which they were written, with retries."""
    if reason not in (None, *REASONS):
        raise ConfigurationError(f"--reason: there is no such reason: expected one of {', '.join(REASONS)}")
    name = dead_letter_topic(model)
    missing = DataError(f"there is no topic {name}: no record of {model} was set aside yet")
    letters: dict[str, Letter] = {}
    retried: dict[str, str] = {}
    async for _, records in settings.kafka.cluster.read_whole(name, missing):
        for i, record in enumerate(records):
            key = (record.key or b"").decode(errors="replace")
            if len(record.headers) == 1 and record.headers[0][0] == RETRIED_HEADER:
                retried[key] = (record.headers[0][1] or b"").decode()
                continue
            own = own_headers(record.headers)
            ours = {name: content or b"" for name, content in record.headers[: len(record.headers) - len(own)]}
            record_key = ours.pop("key", None)
            about = {name: content.decode(errors="replace") for name, content in ours.items() if name != "headers"}
            if "reason" in about:
                content = record.value, records.values.format_at(i)
                letters.setdefault(key, Letter(key, record.timestamp, about, record_key, *content, list(own)))
    chosen = (x._replace(retried=retried.get(x.key)) for x in letters.values() if reason in (None, x.about["reason"]))
    return sorted(chosen, key=lambda letter: letter.time)
