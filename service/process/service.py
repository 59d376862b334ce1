"""The composition root: it makes a running process of the settings. With `learn` the process joins the consumer group.

Tasks live in one TaskGroup: a task that dies ends the process, which never goes on half alive. On SIGTERM or SIGINT the
process 1. becomes unready, 2. saves every learner a last time, 3. answers requests in flight, 4. leaves the group.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import uvloop
from aiokafka import TopicPartition
from uvicorn.server import ServerState

from service import __version__
from service.errors import ConfigurationError, DependencyError, PerceptronError, os_cause
from service.learning.columns.columns import columns_for
from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import Identity
from service.learning.jit import CACHE_IS_EMPTY
from service.learning.learner import Learner
from service.learning.records import P0, Records
from service.monitoring.logging import configure_logging
from service.monitoring.metrics import Metrics, ModelFigures
from service.process.model_topics import ModelTopics
from service.process.observer import ModelObserver, release_memory
from service.process.scheduler import SystemClock
from service.serving.http.app import Application
from service.serving.http.server import HttpServer
from service.serving.http.v1 import warm_up_predictions
from service.serving.model_info import describe
from service.serving.models import Follower, Model, Models, ModelStatus, ServedModel, follow, static_model
from service.serving.page.page import History
from service.settings.load import Settings, parse_start_at
from service.snapshots.head import Writer
from service.snapshots.keeper import Keeper, SaveBudget, Snapshot
from service.snapshots.ports import before_reset
from service.streaming.kafka.cluster import connected_clients
from service.streaming.kafka.fetching.record_framing import TABLE_ROWS, frame_records
from service.streaming.kafka.membership.group import GroupMember
from service.streaming.kafka.model_log import ModelLog
from service.streaming.learn_loop import LearnLoop
from service.streaming.records import find_formats
from service.streaming.supervision import SupervisedTasks
from service.text import host_and_port

T = TypeVar("T")

DRAIN_SECONDS = 0.5
"""Time to answer while unready: balancers choose other processes, and each answer ends its connection."""
STOP_SECONDS = 4.0
"""Time for the last saves. A stop takes at most ten seconds, leaving the group included."""
MAX_RETRY_SECONDS = 5.0
"""The longest pause between two tries: short enough to notice an answer soon, long enough not to flood a server."""
SWITCH_SECONDS = 0.001
"""The longest time that the event loop waits for a thread that holds the interpreter."""
GC_THRESHOLD = 10_000, 4, 10
"""Thresholds of Python's garbage collector: more objects than a fetch of a hundred topics makes, which soon go.

With Python's own 700 the collector looks through them many times a second, for a millisecond each time.
"""
SETTLED_SECONDS = 10.0
"""Time after the start until most long-lived objects exist. Then they are hidden from the collector."""
FIND_SECONDS = 2.0
"""Seconds between two looks of a replica for models that it does not know."""


class Process:
    """One process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics(__version__, self._figures, self.is_ready, self._missing)
        self._log = configure_logging(settings.log, self._metrics.dropped_lines.inc)
        self._stop = asyncio.Event()
        self._signal = 0
        self._requests = ServerState()
        self._clock = SystemClock(self._requests)
        self._store = settings.redis.store()
        self._followers: dict[str, Follower] = {}
        self._models = Models(map(self._model, settings.model_topics))
        for name in settings.threshold_units:
            unit = settings.model_settings(name)
            learner = Learner(unit.identity(), options=unit.options(), start=unit.start_weights)
            self._models.add(static_model(name, learner, self._clock.time()))
        self._saves = SaveBudget(lambda: sum(model.learning_here for model in self._models))
        self._learners: list[asyncio.Task[None]] = []
        self._background: list[asyncio.Task[None]] = []
        self._is_compiling = False
        self._connections = AsyncExitStack()
        """Closes the store and, once they are connected, the Kafka clients and the group member."""
        self._connections.push_async_exit(self._store)
        self._connecting_since = 0.0
        """When the process began to connect to Kafka (seconds since 1970); 0 before."""
        self._topics = ModelTopics(settings, self._models, self._metrics, self._log)
        self._member: GroupMember | None = None
        """None until Kafka is connected, and in a process that does not learn."""

    def is_ready(self) -> bool:
        """Whether every listed model can answer, and we are not stopping."""
        return self._models.ready and not self._stop.is_set()

    async def run(self) -> int:
        """Serve and learn until SIGTERM or SIGINT, and return the exit code.

        Raises PerceptronError when the process cannot go on.
        """
        settings = self._settings
        listening = bind(settings.http.host, settings.http.port, settings.http.reuse_port)
        for warning in settings.warnings:
            self._log.warning(warning)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping, number)
        # While Kafka does not answer, the end of its log is not known.
        history = History(self._models, lambda model: None if self._missing().get("kafka") else self._lag(model))
        server = self._server(history)
        host, port = listening.getsockname()[:2]
        self._log.info("listening", url=f"{settings.http.scheme}://{host_and_port(host, port)}", release=__version__)
        try:
            async with self._connections, SupervisedTasks() as tasks:
                self._topics.run = tasks.create_task
                serving = tasks.create_task(server.serve(sockets=[listening]))
                self._background += map(tasks.create_task, (self._measure_loop(), history.run(), self._work(tasks)))
                await self._stop.wait()
                await asyncio.sleep(DRAIN_SECONDS)
                if self._learners:
                    _, late = await asyncio.wait(self._learners, timeout=STOP_SECONDS)
                    if late:
                        self._log.warning("the last save is late; its records are learned again at the next start")
                    self._background += late
                server.stop()
                for task in self._background:
                    task.cancel()
                await asyncio.wait([serving])  # it answers the last requests
                if not await self._topics.end():
                    self._log.warning("the last logged predictions are lost: Kafka has not acknowledged them")
        except BaseExceptionGroup as errors:
            _, others = errors.split(PerceptronError)
            raise others or _first(errors) from None
        code = 130 if self._signal == signal.SIGINT else 0
        self._log.info("stopped")
        if self._is_compiling:  # the thread cannot be stopped, and the interpreter would wait for it
            os._exit(code)
        return code

    def _server(self, history: History) -> HttpServer:
        """The HTTP server. When it stops, it waits for requests in flight."""
        http, logger, ended, stopping = self._settings.http, self._log, self._metrics.ended, self._stop.is_set
        shared = self._models, self._metrics, self._store, history, stopping
        app = Application(*shared, http, __version__, logger, self._topics.log_of, self._topics.posting_of)
        tls = http.tls.context(logger) if http.tls else None
        return HttpServer(app, http, self._requests, lambda cause: ended.labels(cause).inc(), stopping, tls)

    def _stopping(self, number: int) -> None:
        self._log.info("stopping", signal=signal.Signals(number).name)
        self._signal = number
        self._stop.set()

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        """Compile, connect to the store, start following, connect to Kafka, start learning."""
        settings = self._settings
        own = [model.identity() for model in settings.models.values()]
        kinds = {(min(each.classes, 3), each.scale, each.clip) for each in own}
        if CACHE_IS_EMPTY:
            self._log.info("compiling, once: 10 to 20 seconds")
        joins = any(model.join or model.event.once for model in settings.models.values())
        await self._compile(warm_up, kinds, joins)
        _settle()
        gc.set_threshold(*GC_THRESHOLD)
        gc.enable()  # the command began with the collector off
        asyncio.get_running_loop().call_later(SETTLED_SECONDS, _settle)
        self._background.append(tasks.create_task(self._compile(use_compiled_reader, True)))
        if not (settings.model_topics or settings.patterns):
            return
        warn_once = cache(self._log.warning)

        async def check_store(learn: bool) -> None:
            for warning in await self._insist(lambda: self._store.check(learn), settings.fail_fast):
                warn_once(warning)

        await check_store(learn=False)
        async with SupervisedTasks() as following:

            def add_model(topic: str) -> Model:
                self._log.info("topic found", topic=topic)
                return self._models.add(self._model(topic))

            def learn(log: ModelLog) -> None:
                model = self._models.listed.get(log.model) or add_model(log.model)
                self._learners.append(tasks.create_task(self._learning(model, log).run()))

            spawn = following.create_task
            spawn(follow(self._followers, self._store, self._clock, self._wake, self._note_aliases, spawn))
            if settings.learn:
                await check_store(learn=True)
                self._member = await self._connect()
                await self._member.run(learn)
            elif settings.patterns:
                await self._find_stored(add_model)

    async def _compile(self, function: Callable[..., None], *arguments: Any) -> None:
        self._is_compiling = True
        await asyncio.to_thread(function, *arguments)
        self._is_compiling = False

    def _wake(self, model: str) -> None:
        """Wake the idle local learner of a model, so that it checks its head."""
        if self._member is not None:
            self._member.logs[model].wake()

    async def _connect(self) -> GroupMember:
        """Connect to Kafka. The member does not join its group yet."""
        settings, connect = self._settings, self._connections.enter_async_context
        self._connecting_since = time.time()
        clients = await self._insist(lambda: connect(connected_clients(settings.kafka.cluster)), settings.fail_fast)
        new_member = partial(
            GroupMember,
            clients,
            settings.kafka.group_id,
            settings.model_topics,
            self._log,
            self._stop,
            self._store.models,
            create=settings.create_topics,
            session_timeout=settings.kafka.session_timeout,
            watchdog=settings.kafka.watchdog,
            matches=settings.requests_topic if settings.patterns else None,
            predictions_wait=self._clock.is_busy,
            count_ignored=self._metrics.ignored_partitions.inc,
            count_throttled=self._metrics.throttled.inc,
        )
        return await self._insist(lambda: connect(new_member().connected()), settings.fail_fast)

    async def _note_aliases(self, aliases: Mapping[str, str]) -> None:
        """Use these aliases, and follow their models."""
        known, self._models.aliases = self._models.aliases, aliases
        for alias, name in aliases.items() - known.items():
            model = self._models.get(name) or self._models.add(self._model(name, alias))
            own = self._followers.get(alias)
            if own and name == before_reset(alias):
                model.answering = own.pause()
            waits = "" if model.answering else "; it has no snapshot here yet, so the alias waits for one"
            self._log.info(f"a model answers for another name{waits}", model=name, alias=alias)
        for alias, name in known.items() - aliases.items():
            if name == before_reset(alias):
                self._log.info("the last version from before the reset answers no more", model=alias)
                del self._followers[name]
                kept = self._models.remove(name)
                if own := self._followers.get(alias):
                    own.resume(kept.answering)
        for alias, name in aliases.items():
            if name == before_reset(alias) and await self._is_caught_up(alias):
                await self._store.set_alias(alias, alias)

    async def _is_caught_up(self, name: str) -> bool:
        """Whether this process learns the stored model, and its snapshot has reached the end of the log."""
        model = self._models.get(name)
        if model is None or (served := model.answering) is None or not model.learning_here or self._member is None:
            return False
        saved = {p: position.offset for p, position in served.head.next.items()}
        # The digest differs until the reset is noticed.
        return self._member.logs[name].has_reached_end(saved) and await self._store.digest(name) == served.digest

    async def _find_stored(self, add_model: Callable[[str], Model]) -> None:
        """Find the models in the store whose names match a pattern. A replica does so, since it needs no Kafka."""
        while True:
            for name in await self._insist(self._store.models, fail_fast=False):
                if self._settings.requests_topic(name) and self._models.get(name) is None:
                    add_model(name)
            await asyncio.sleep(FIND_SECONDS)

    def _model(self, topic: str, alias: str = "") -> Model:
        """A model that this process learns or follows; with an alias, the one that answers for it, to follow."""
        learns = self._settings.learn and not alias
        status = ModelStatus(
            lambda: self._store.failure,
            lambda: learns and (self._member is None or self._member.awaits_assignment(topic)),
            lambda: self._member.missing_topic(topic) if learns and self._member else "",
        )
        own = self._settings.model_settings(alias if topic == before_reset(alias) else topic)
        model, options = Model(topic, status), own.options()
        observer = ModelObserver(model, self._metrics, self._log)
        self._followers[topic] = Follower(model, self._store, self._clock, options, observer)
        return model

    def _learning(self, model: Model, log: ModelLog) -> LearnLoop:
        settings = self._settings
        own, follower = settings.model_settings(model.name), self._followers[model.name]

        async def followed() -> Snapshot | None:
            # A model that was reset may not answer before its alias is known.
            await self._note_aliases((await self._store.look([]))[1])
            return await follower.hand_over()

        keeper = Keeper(
            model.name,
            self._store,
            self._clock,
            asyncio.to_thread,
            options=own.options(),
            start=own.start_weights,
            keep_every=settings.snapshots.keep_every,
            keep=settings.snapshots.keep,
            writer=Writer(settings.kafka.group_id, f"{socket.gethostname()}:{os.getpid()}"),
            followed=followed,
            budget=self._saves,
        )
        return LearnLoop(
            log,
            keeper,
            self._clock,
            follower.observer,
            own.identity(),
            parse_start_at(settings.start_at),
            followed=lambda: model.answering is not None,
            seen_digest=lambda: follower.seen_digest,
            by_time=own.event.order == "time",
            aim=self._clock.slice_seconds,
        )

    async def _insist(self, ask: Callable[[], Awaitable[T]], fail_fast: bool) -> T:
        """Ask until a dependency answers, and log each error once; raises DependencyError if `fail_fast`."""
        pause, logged = 0.1, ""
        while True:
            try:
                return await ask()
            except DependencyError as error:
                if fail_fast:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    self._log.error(f"{logged}; trying again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    async def _measure_loop(self) -> None:
        while True:
            due = time.monotonic() + 0.5
            await asyncio.sleep(0.5)
            self._metrics.loop_lag.set(max(0.0, time.monotonic() - due))

    def _figures(self) -> Iterator[Awaitable[ModelFigures]]:
        """The figures of each model that answers, to await at a scrape."""
        return (self._figures_of(model, model.answering) for model in self._models if model.answering)

    async def _figures_of(self, model: Model, served: ServedModel) -> ModelFigures:
        about = await describe(model, served)
        saved = {p: position.offset for p, position in served.head.next.items()}
        unsaved = sum(offset - saved.get(p, offset) for p, offset in served.learner.next.items())
        held_back = self._member.logs[model.name].held_back() if self._member and model.learning_here else {}
        return ModelFigures(about, served.head.counts, served.head.saved_at, self._lag(model) or {}, held_back, unsaved)

    def _lag(self, model: Model) -> dict[TopicPartition, int] | None:
        """Records that are still to be learned, by partition; None if another process learns the model."""
        if model.answering is None or not model.learning_here or self._member is None:
            return None
        return self._member.logs[model.name].lag(model.answering.learner.next)

    def _missing(self) -> dict[str, float]:
        """Since when each dependency does not answer, or 0."""
        kafka = self._member.health.missing_since if self._member else self._connecting_since
        return ({"kafka": kafka} if self._settings.learn else {}) | {"redis": self._store.missing_since}


Kinds = Iterable[tuple[int, Literal["none", "standard"], float | msgspec.UnsetType]]
"""Kinds of models: the number of labels (3 for 3 and more), the scale, and its clip."""
ALL_KINDS: Kinds = ((2, "none", msgspec.UNSET), (3, "standard", msgspec.UNSET), (3, "standard", 6.0))


def warm_up(kinds: Kinds = ALL_KINDS, joins: bool = True) -> None:
    """Compile the kernels, so that the first event and the first scrape do not wait for them.

    The build of an image compiles them for all kinds. A process compiles at its start only those of its own kinds: each
    kind takes seconds if its result is not on disk.
    """
    if kinds is ALL_KINDS:
        use_compiled_reader(True)
    record_table = np.ones((TABLE_ROWS, 1), np.int64)
    frame_records(0, 0, 0, 0, 0, (0, 0, False), (0, 1), record_table)
    find_formats(np.zeros(0, np.uint8), record_table)
    names = columns_for(Identity())
    names.extend(["name"])
    names.find({"name": 1.0})
    event = b'{"features":[1],"label":1,"more":1}'
    if joins:
        _learn_event(Identity(once=1), b'{"features":{},"label":1,"id":"a"}')
    for labels, scale, clip in kinds:
        identity = Identity(labels=tuple(range(labels)), features="positional", dimension=1, scale=scale, clip=clip)
        learner = _learn_event(identity, event)
        learner.main.begin_segment()
        learner.apply(Records.from_values(1, [event]))
        warm_up_predictions(learner)
        if scale != "none":  # hashed names may share a column: their values are merged by a kernel of its own
            _learn_event(Identity(features="hashed", bits=1, scale=scale, clip=clip), b'{"features":{"a":1},"label":1}')


def _learn_event(identity: Identity, event: bytes) -> Learner:
    learner = Learner(identity)
    learner.begin({P0: 0})
    learner.apply(Records.from_values(0, [event]))
    return learner


def bind(host: str, port: int, reuse_port: bool = False) -> socket.socket:
    """A socket that listens at this address, on a shared port if `reuse_port`. Raises ConfigurationError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6  # "::" stands for IPv4 too
        return socket.create_server(address, family=family, reuse_port=reuse_port, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigurationError(f"http: cannot listen on {host_and_port(host, port)}: {os_cause(error)}") from None


def _freeze_heap() -> None:
    """Collect garbage, and hide all else from the collector: to look through all modules would hold the event loop."""
    gc.collect()  # frozen garbage would stay for ever
    gc.freeze()


def _settle() -> None:
    """Hide the heap from the collector again, and give free memory back to the system."""
    _freeze_heap()
    asyncio.get_running_loop().run_in_executor(None, release_memory)


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def run_service(settings: Settings) -> int:
    """Run one process to its end; returns the exit code."""
    settings.check_work()
    sys.setswitchinterval(SWITCH_SECONDS)
    _freeze_heap()
    return uvloop.run(Process(settings).run())
