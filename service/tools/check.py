"""`perceptron check`: whether what is set can work, with what is stored, and whether records are what is set."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import typer

from service.errors import DataError, PerceptronError, Rejected, Unauthorised
from service.learning.columns.columns import columns_for
from service.learning.events.batch import Decoder
from service.learning.events.careful_reader import values_of
from service.learning.events.flatten import Flattener
from service.learning.events.json_pointer import parse_pointer
from service.learning.identity import Identity, Places
from service.settings.load import Settings
from service.settings.model import ModelSettings
from service.snapshots.codec import readable
from service.snapshots.head import Source
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.failures import missing_right
from service.streaming.kafka.membership.coordinator import coordinator_failure
from service.streaming.records import value_of
from service.streaming.resume_check import same_settings
from service.tools.formats.readers import at
from service.tools.suggest.sample import count_records, newest_of, parse_object

RECORDS = 100
"""Of a topic: enough to see what its producers send now."""


class _Report:
    """Prints a line for each thing, and collects what failed."""

    def __init__(self) -> None:
        self.failed = list[PerceptronError]()

    def say(self, level: str, text: str) -> None:
        """One line: ok, warn or fail."""
        typer.echo(f"{level:<4}  {text}")

    def warn(self, texts: Iterable[str]) -> None:
        """A line for each of these."""
        for text in texts:
            self.say("warn", text)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error within is a line, and the check goes on after it."""
        try:
            yield
        except PerceptronError as error:
            self.failed.append(error)
            self.say("fail", str(error))


def check_settings(settings: Settings) -> int:
    """Print one line for each thing that must work; returns the exit code."""
    return max((error.exit_code for error in asyncio.run(_check(settings))), default=0)


async def _check(settings: Settings) -> list[PerceptronError]:
    report, cluster, group = _Report(), settings.kafka.cluster, settings.kafka.group_id
    with report.failing():
        settings.check_work()
        report.say("ok", f"settings: {len(settings.topics)} topic{'s' * (len(settings.topics) != 1)}")
    report.warn(settings.warnings)
    reached, topics = False, None
    with report.failing():
        async with settings.redis.store() as store:
            warnings = await store.check(settings.learn)
        reached = True
        report.say("ok", f"Redis at {store.address}")
        report.warn(warnings)
    if not settings.learn:
        return report.failed
    with report.failing():
        async with cluster.admin() as client:
            names = set(await client.list_topics())
        topics = names
        report.say("ok", str(cluster))
    if topics is None:
        return report.failed
    with report.failing():
        broker, _ = await coordinator_failure(cluster, group, settings.kafka.session_timeout)
        report.say("ok", f"group {group}: broker {broker} coordinates it")
    for topic in settings.topics:
        for name, right in ((topic, "Read"), (topic_of(topic), "Write")):
            with report.failing():
                await _check_topic(report, settings, name, right, name in topics)
    learned = [topic for topic in sorted(topics) if topic in settings.listed or settings.requests_topic(topic)]
    if reached:
        await _check_stored(report, settings, learned)
    for topic in learned:
        vain = list[str]()
        with report.failing():
            own = settings.of(topic)
            level, said, values = await _judge_newest(cluster, topic, own.identity())
            vain = unmatched_settings(own, values)
            if level == "fail":
                raise DataError(f"topic {topic}: {said}")
            report.say(level, f"topic {topic}: {said}")
        report.warn(f"models.{topic}.{line}" for line in vain)
    return report.failed


async def _check_topic(report: _Report, settings: Settings, name: str, right: str, listed: bool) -> None:
    """Whether a topic is there, and may be used as it must be; raises PerceptronError."""
    cluster = settings.kafka.cluster
    if not (listed or await cluster.partitions(name, right)):
        if not settings.create_topics:
            raise PerceptronError(f"topic {name} does not exist: create it, or run with --create-topics")
        report.say("ok", f"topic {name} will be created")
        return
    lacking = await cluster.lacking(name, right, "DescribeConfigs")
    if right in lacking:
        raise Unauthorised(f"{cluster}: {missing_right(right, f'topic {name}')}", "kafka")
    report.say("ok", f"topic {name}")
    report.warn(f"{cluster}: {missing_right(missing, f'topic {name}')}" for missing in lacking)


async def _check_stored(report: _Report, settings: Settings, topics: Iterable[str]) -> None:
    """A line for each stored model: whether it goes on here, under these settings."""
    async with settings.redis.store() as store:
        for topic in topics:
            with report.failing():
                if stored := await store.head(topic):
                    head, here = readable(topic, *stored), Source(await settings.kafka.cluster.id())
                    same_settings(topic, head, settings.of(topic).identity(), here)
                    report.say("ok", f"model {topic}: goes on with version {head.version}")


async def _judge_newest(cluster: Cluster, topic: str, identity: Identity) -> tuple[str, str, list[bytes | None]]:
    """Whether the newest records of a topic are events: ok, warn or fail, what to say, and these records.

    Raises DependencyError, and DataError if a record cannot be read.
    """
    decoder, values, skipped = Decoder(identity, columns_for(identity)), list[bytes | None](), 0
    reasons, example = Counter[str](), ""
    async for partition, newest in newest_of(cluster, topic, DataError(f"topic {topic} does not exist"), RECORDS):
        for record in newest:
            values.append(value_of(record))
            batch, rejects = decoder.decode(values[-1:])
            skipped += len(batch.skipped)
            for _, reason, detail in rejects:
                reasons[reason] += 1
                example = f"{detail} (offset {record.offset} of partition {partition})"
    if not values:
        return "ok", "no records yet", values
    accepted = len(values) - reasons.total() - skipped
    said = f"{accepted} of the last {len(values)} records would be accepted"
    said += f", {skipped} passed over by `where`" if skipped else ""
    if reasons:
        each = ", ".join(f"{count} rejected as {reason}" for reason, count in reasons.most_common())
        said += f", {each}, such as: {example}"
    return "ok" if accepted and not reasons else "warn" if accepted or not reasons else "fail", said, values


def unmatched_settings(settings: ModelSettings, values: Sequence[bytes | None]) -> list[str]:
    """A line for each optional pointer and each pattern that is set and matches nothing in these records.

    Records without features or a label are rejected, and those that `where` does not mean are counted: both are seen.
    """
    records = [record for record in map(parse_object, values) if record is not None]
    if not records:
        return []
    of = f"the {count_records(len(records))} that were looked at"
    places, default = settings.event.places(), Places()
    lines = []
    for part in ("weight", "id"):
        pointer: str | None = getattr(places, part)
        if pointer is None or pointer == getattr(default, part):
            continue
        if all(at(record, parse_pointer(pointer)) is None for record in records):
            lines.append(f"event.{part}: {pointer} is in none of {of}")
    patterns = [("only", one) for one in places.only] + [("without", one) for one in places.without]
    unmatched = [(setting, pattern) for setting, pattern in patterns if not _matches(settings, pattern, values)]
    return lines + [f'event.{setting}: "{pattern}" matches no feature of {of}' for setting, pattern in unmatched]


def _matches(settings: ModelSettings, pattern: str, values: Sequence[bytes | None]) -> bool:
    """Whether a pattern selects a feature of any of these records."""
    event = settings.event.model_copy(update={"only": (pattern,), "without": ()})
    flattener = Flattener(settings.model_copy(update={"event": event}).identity())
    for value in values:
        with suppress(Rejected):
            features = values_of(value or b"", (flattener.path,)).whole(0, settings.max_features, event.features)
            if flattener.of(features, event.features):
                return True
    return False
