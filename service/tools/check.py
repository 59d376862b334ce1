"""`perceptron check`: whether the settings can work, and fit the stored models and the newest records."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import numpy as np
import typer
from numpy.typing import NDArray

from service.errors import DataError, LogLost, PerceptronError, Unauthorised
from service.learning.columns.columns import columns_for
from service.learning.evaluation.advice import repeated_ids
from service.learning.events.event_reader import EventReader
from service.learning.events.flatten import Flattener
from service.learning.events.json_values import value_in
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity, JoinRules
from service.settings.load import Settings, parse_start_at
from service.settings.model import ModelSettings
from service.snapshots.head import Head, TopicIdentity
from service.streaming import resume_check
from service.streaming.dead_letters import dead_letter_topic
from service.streaming.kafka.connection import missing_right
from service.streaming.kafka.health import find_coordinator
from service.text import printable, quantity
from service.tools.suggest.field_profile import member_notes, profile_fields
from service.tools.suggest.sample import join_values, newest_of, parse_objects

MAX_AHEAD_SECONDS = 3600
NEWEST_RECORDS = 100
"""Records that are read from each topic."""


class _Report:
    """Prints a line for each check, and collects the errors."""

    def __init__(self) -> None:
        self.failed = list[PerceptronError]()

    def say(self, level: str, *texts: str) -> None:
        """A line for each text, with its level: ok, warn or fail."""
        for text in texts:
            typer.echo(f"{level:<4}  {text}")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Print an error as a line, after which the checks go on."""
        try:
            yield
        except PerceptronError as error:
            self.failed.append(error)
            self.say("fail", str(error))


def check_settings(settings: Settings) -> int:
    """Print a line for each check; returns the exit code."""
    return max((error.exit_code for error in asyncio.run(_check(settings))), default=0)


async def _check(settings: Settings) -> list[PerceptronError]:
    report, cluster, group = _Report(), settings.kafka.cluster, settings.kafka.group_id
    with report.failing():
        settings.check_work()
        named = set(settings.topics).union(*settings.model_topics.values())
        report.say("ok", f"settings: {quantity(len(named), 'topic')}")
    report.say("warn", *settings.warnings)
    reached, topics = False, None
    with report.failing():
        async with settings.redis.store() as store:
            warnings = await store.check(settings.learn)
        reached = True
        report.say("ok", f"Redis at {store.address}")
        report.say("warn", *warnings)
    if not settings.learn:
        return report.failed
    with report.failing():
        topics = await cluster.topics()
        report.say("ok", str(cluster))
    if topics is None:
        return report.failed
    with report.failing():
        broker, _ = await find_coordinator(cluster, group, settings.kafka.session_timeout)
        report.say("ok", f"group {group}: broker {broker} coordinates it")
    learned = {topic: [topic] for topic in topics if settings.requests_topic(topic)} | settings.model_topics
    heads = dict[str, tuple[str, bytes] | None]()
    if reached:
        async with settings.redis.store() as store:
            for model in learned:
                with report.failing():
                    heads[model] = await store.head(model)
    for model, own in settings.model_topics.items():
        log = settings.model_settings(model).predictions
        written = [dead_letter_topic(model), *([log.topic] if log else [])]
        for name, right in (*((topic, "Read") for topic in own), *((topic, "Write") for topic in written)):
            with report.failing():
                await _check_topic(report, settings, name, right, name in topics, model if heads.get(model) else "")
    learned = {model: own for model, own in sorted(learned.items()) if topics.issuperset(own)}
    for model in filter(heads.__contains__, learned):
        with report.failing():
            await _check_model(report, settings, model, learned[model], heads[model])
    for model, own in learned.items():
        for topic in own:
            with report.failing():
                await _check_records(report, settings, model, topic, topic != own[0])
        with report.failing():
            if reach := settings.model_settings(model).identity().reach_ms:
                report.say("warn", *await cluster.retention_warnings(own, reach))
    return report.failed


async def _check_topic(report: _Report, settings: Settings, name: str, right: str, listed: bool, stored: str) -> None:
    """Print whether a topic exists and this user may use it; raises PerceptronError.

    `right` is Read or Write, and `listed` says whether Kafka listed the topic. `stored` is the model that learns it, if
    the store has a snapshot of that model, else ''.
    """
    cluster = settings.kafka.cluster
    if not (listed or await cluster.partitions(name, right)):
        if stored and right == "Read":
            raise LogLost(resume_check.lost_topic_message(stored, name))
        if not settings.create_topics:
            raise PerceptronError(f"topic {name} does not exist: create it, or run with --create-topics")
        return report.say("ok", f"topic {name} will be created")
    lacking = await cluster.lacking(name, right, "DescribeConfigs")
    if right in lacking:
        raise Unauthorised(f"{cluster}: {missing_right(right, f'topic {name}')}", "kafka")
    report.say("ok", f"topic {name}")
    return report.say("warn", *(f"{cluster}: {missing_right(each, f'topic {name}')}" for each in lacking))


async def _check_model(
    report: _Report, settings: Settings, model: str, topics: Sequence[str], stored: tuple[str, bytes] | None
) -> None:
    """Check that a model can begin with these topics or, if it is stored, go on; raises PerceptronError."""
    cluster, topic_of = settings.kafka.cluster, lambda partition: partition.topic or topics[0]
    head = Head.decode_current(model, *stored) if stored else None
    if head:
        source, identity = TopicIdentity(await cluster.id()), settings.model_settings(model).identity()
        resume_check.same_settings(model, head, identity, source)
    async with cluster.reader(model, topics, LogLost(resume_check.lost_topic_message(model, topics[0]))) as reader:
        if head is None:
            if not isinstance(start_at := parse_start_at(settings.start_at), int):
                resume_check.first_offsets(topic_of, reader.bounds, start_at)
            return
        following = {partition: position.offset for partition, position in head.next.items()}
        resume_check.check_offsets(model, topic_of, head, following, reader.bounds)
        for partition, position in head.next.items():
            if (last := position.fingerprint) and last.offset >= reader.bounds[partition][0]:
                async for records in reader.read(partition, last.offset, last.offset + 1):
                    if resume_check.fingerprint(records.record(0)) != last:
                        raise resume_check.other_record(model, topic_of, partition, last.offset)
        if head.join:
            resume_check.check_held(model, topic_of, head.join.rebuild, reader.bounds)
    report.say("ok", f"model {model}: goes on with version {head.version}")


async def _check_records(report: _Report, settings: Settings, model: str, topic: str, labels: bool) -> None:
    """A line for the newest records of a topic: whether they are events of the model, or `labels` of events.

    Raises DependencyError, and DataError if a record cannot be read, or if some are rejected and none is accepted.
    """
    own = settings.model_settings(model)
    identity = own.identity()
    parts, held_back = await newest_of(settings.kafka.cluster, topic, NEWEST_RECORDS)
    values = join_values(parts)
    if not values:
        return report.say("warn" if held_back else "ok", *(held_back or [f"topic {topic}: no records yet"]))
    report.say("warn", *held_back)
    events = EventReader(identity, labels).read(values)
    rejects, skipped = events.rejects, len(events.skipped)
    accepted = len(values) - len(rejects) - skipped
    text = f"topic {topic}: {accepted} of the last {len(values)} records would be accepted"
    text += f", {skipped} passed over by `where`" if skipped else ""
    for reason, count in Counter(reject.reason for reject in rejects).most_common():
        text += f", {count} rejected as {reason}"
    if rejects:
        places = [place for part in parts for place in map(part.place, range(len(part)))]
        partition, offset = places[rejects[-1].record]
        text += f", such as: {rejects[-1].detail} (offset {offset} of partition {partition})"
    if rejects and not accepted:
        raise DataError(text)
    report.say("warn" if rejects or not accepted else "ok", text)
    if identity.join:
        times = [part.timestamps for part in parts]
        report.say("warn", *(f"topic {topic}: {line}" for line in _time_warnings(times, identity.join)))
    if labels:
        return None
    if not identity.needs_ids and (line := repeated_ids(events.ids)):
        report.say("warn", f"topic {topic}: {line}")
    report.say("warn", *(f"topic {topic}: {printable(line)}" for line in value_notes(identity, values)))
    return report.say("warn", *(f"models.{model}.{line}" for line in unmatched_settings(own, values)))


def _time_warnings(times: Sequence[NDArray[np.int64]], join: JoinRules) -> Iterator[str]:
    """A line for each thing about the timestamps of records, by partition, that makes a join lose events."""
    all_times = np.concatenate(times)
    if any((np.diff(own) < -join.window).any() for own in times):
        yield "timestamps go back by more than join.window: such events come too late for their labels"
    if all_times.max() > 1000 * (time.time() + MAX_AHEAD_SECONDS):
        yield "timestamps lie in the future: such records wait until the others have come that far"
    in_window = len(all_times) * join.window / max(1, int(np.ptp(all_times)))
    if in_window > join.max_held and len(all_times) == NEWEST_RECORDS:
        yield f"about {in_window:,.0f} records come in a window, and join.max_held is {join.max_held:,}"


def value_notes(identity: Identity, values: ValueBuffer) -> Iterator[str]:
    """A line for each thing that is odd about the values of the features that no type says how to read."""
    flattener = Flattener(identity)
    rows = [row for record in parse_objects(values) if isinstance(row := value_in(record, flattener.path), dict)]
    is_read = flattener.patterns.select if flattener.patterns else bool
    members = [member for path, member in profile_fields(rows).items() if path not in flattener.excluded]
    members = [each for each in members if is_read(each.name) and not flattener.type_of(each.name)]
    for member in members:
        member.judge(len(rows))
        if member.reading == "number" and identity.text == "category":
            yield f'{member.name} has numbers in strings: event.types = {{ "{member.name}" = "number" }} reads them'
    yield from member_notes(members, bool(identity.clip))


def unmatched_settings(settings: ModelSettings, values: ValueBuffer) -> list[str]:
    """A line for each pattern that matches no feature of these records."""
    event = settings.event
    places = event.model_copy(update={"only": (), "without": ()})
    all_named = ModelSettings(event=places, labels=settings.labels, join=settings.join)
    names = columns_for(all_named.identity()).decode(EventReader(all_named.identity()).read(values)).names
    bare_names = [name.partition("=")[0] for name in names]
    return [
        f'event.{setting}: "{pattern}" matches no feature of the records that were looked at'
        for setting, patterns in (("only", event.only), ("without", event.without))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in bare_names)
    ]
