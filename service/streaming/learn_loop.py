"""The loop that learns one model.

1. Wait until Kafka gives us the model's log: all partitions of its topics.
2. Restore the current head. If there is none, begin a model and save its first head before its first event.
3. Seek to where the head stops.
4. Learn: poll. Apply records in slices, with a turn of the event loop between them, and publish rejected records as
   dead letters. The log returns records in order, and raises if its batches do not follow each other.
5. When a save is due: flush the dead letters, check that no topic was recreated, save, and commit the offsets to Kafka
   (advisory: nothing reads them back).
6. Save refused: another process continued from our head. Drop the state and go to 2.
7. Revoked or stopping: save a last time, release the log, and go to 1 or end.
8. Stopped: report an error that waiting does not mend, and watch the stored model until it is another one.

Unless it is stopped, the loop keeps its model when it loses the log, and continues if the model's head is current.
The loop awaits only `Log`, `Clock`, and the store and the `offload` of the keeper, so one test can drive it through any
interleaving. It reports events to an `Observer`; nothing here logs, counts or serves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from service import errors
from service.learning.evaluation.prequential import ALL, GivenAnswer
from service.learning.identity import Identity, Label
from service.learning.join.join import Join, step_of
from service.learning.learner import Learner
from service.learning.records import PartitionId
from service.snapshots.head import Fingerprint, TopicIdentity
from service.snapshots.keeper import Keeper
from service.snapshots.ports import Clock
from service.streaming import resume_check
from service.streaming.dead_letters import dead_letter
from service.streaming.merge import Merge
from service.streaming.ports import Bounds, Log, Observer
from service.streaming.records import KafkaRecords

MAX_SLICE_RECORDS = 4000
SLICE_BYTES = 1 << 20
SLICE_SECONDS = 0.005
"""The records, bytes and seconds after which the event loop turns: a prediction waits for at most one slice. A single
record may exceed them; the decoder limits how long that takes."""
FIRST_SLICE_RECORDS, MIN_SLICE_RECORDS = 200, 50
AIM_SECONDS = 0.002
"""If records take long to learn, a slice gets fewer, so that it takes about this time."""
MAX_PAUSE_SECONDS = 5.0
"""The longest pause between two attempts to restore."""
CONFIRM_SECONDS = 1.0
"""How often an idle learner asks whether its head is current, if the process has not read the store's head since."""

WAIT_SECONDS = 5.0
"""Seconds without the next records of a partition, after which a merge by time says that it waits."""
DAY_MS = 86_400_000

UNREADABLE_ERRORS = errors.SnapshotDamaged, errors.SnapshotForeign
"""Errors of a stored head that somebody may repair."""

StartAt = str | int | Mapping[PartitionId, int] | None
"""The start of a model without a snapshot: "earliest", "latest", a time in milliseconds, or offsets by partition.

With None the log must begin at offset 0."""


@dataclass
class _Model:
    """The state of the current model. A lost head replaces all of it."""

    learner: Learner
    source: TopicIdentity
    """The identity of the topics that it is learned from."""
    last: dict[PartitionId, Fingerprint] = field(default_factory=dict)
    """The last record learned from each partition, so that it is recognised later."""
    merge: Merge | None = None
    """Merges the partitions by time, if that is set."""


@dataclass(eq=False, repr=False)
class LearnLoop:
    """Learns one model for as long as the process runs."""

    log: Log
    keeper: Keeper
    clock: Clock
    observer: Observer
    identity: Identity
    start_at: StartAt = None
    followed: Callable[[], bool] = lambda: False
    """Says whether this process served the model before, as a standby of another learner."""
    seen_digest: Callable[[], str | None] = lambda: None
    """The digest of the store's head when this process last read it, or None if it did not."""
    by_time: bool = False
    """Whether the partitions of a model without a join are merged by time."""
    aim: Callable[[], float] = lambda: AIM_SECONDS
    """How many seconds a slice should take now."""

    def __post_init__(self) -> None:
        self._model: _Model | None = None
        self._began = False
        """Whether we ever learned this model. If the store later has no head of it, the head was lost."""
        self._displaced = False
        """Whether another process took our place since the last head was read."""
        self._waits_since = 0.0
        """When a merge by time last went on."""
        self._slice = FIRST_SLICE_RECORDS
        """How many records like the last ones a slice should have."""
        self._confirmed: tuple[float, str | None] = 0.0, None
        """When we last checked that our head is current, and `seen_digest` at that time."""

    async def run(self) -> None:
        """Learn the log whenever it is ours, until the log says that the process is stopping."""
        while await self.log.acquire():
            try:
                while self.log.held:
                    if model := await self._restore():
                        await self._learn(model)
            except (errors.DataError, errors.ConfigurationError) as error:
                self._model = None
                await self._watch_stopped(error)
            finally:
                self.observer.released()
                self.log.release()

    async def _watch_stopped(self, reason: Exception) -> None:
        """Step 8: wait until the log is lost, or the stored model is another one, as after a reset or rollback.

        A head that could not be read is read again a little later, since somebody may have repaired it; so is a missing
        one, since only a reset changes what it requires.
        """
        self.observer.stopped(reason)
        self.observer.released()
        while self.log.held:
            await self.clock.sleep(1.0)
            try:
                if isinstance(reason, UNREADABLE_ERRORS) or not self.keeper.digest:
                    return
                if await self.keeper.store.digest(self.log.model) != self.keeper.digest:
                    return
            except errors.DependencyError as error:
                self.observer.unavailable(error)
            except errors.DataError:
                return  # the next restore says why

    async def _learn(self, model: _Model) -> None:
        """Steps 4 to 7, until the log is lost or the state is dropped."""
        learner, reason = model.learner, None
        try:
            while self.log.held and self._model is not None:
                idle, merge = not self.keeper.ahead(learner), model.merge
                if merge is None:
                    polled = await self.log.poll(idle)  # 4
                    in_order: Iterable[KafkaRecords] = polled.values()
                    self.observer.waiting(self._ended_early(model, polled))
                else:
                    polled = await self.log.poll(idle and not merge.waiting, merge.short)
                    merge.add(polled)
                    in_order = merge.take(self.log.at_end())
                for records in in_order:
                    if not self.log.held or self._model is None:
                        break  # these records would cover those of their partition that are left
                    await self._learn_records(model, records)
                    self._waits_since = self.clock.now()
                if merge is not None:
                    self.observer.waiting(self._why_waiting(merge, learner.join))
                if self.log.held and self._model is not None:
                    self._skip_markers(model)
                if self._model is not None and self.keeper.due(learner):
                    await self._save(model)  # 5
                    await self.clock.sleep(0)  # the next poll gets a turn of its own
                elif not polled:
                    await self._confirm()
        except errors.DependencyError as error:
            self.observer.unavailable(error)
            await self.clock.sleep(0.5)
        except errors.DataError as error:
            reason = error  # records before the error are learned, and saved if possible
        # 7. Never save on top of a head that could not be read, even if it was repaired meanwhile: restore it again.
        if self._model is not None and self.keeper.ahead(learner) and not isinstance(reason, UNREADABLE_ERRORS):
            await self._save(model)
        if reason is not None:
            raise reason

    async def _confirm(self) -> None:
        """While no records arrive, check that our head is still current: the model may have been reset."""
        now, digest = self.clock.now(), self.seen_digest()
        if digest == self._confirmed[1] and now - self._confirmed[0] < CONFIRM_SECONDS:
            return
        self._confirmed = now, digest
        try:
            # The digest may have been read before our last save, so another digest than ours proves nothing.
            if digest != self.keeper.digest and not await self.keeper.current():
                self._drop("replaced")
            self.observer.answered()
        except errors.DependencyError as error:
            self.observer.unavailable(error)  # learning does not need the store now

    async def _restore(self) -> _Model | None:
        """Steps 2 and 3, until the log is at the offset where the current head stops; None if the log is lost."""
        pause = 0.1
        while self.log.held:
            try:
                source = await self.log.source()
                # If a rebalance gave the log back to us, our head is still current and our state is good.
                if self._model is None or self._model.source != source or not await self.keeper.current():
                    self._model = None
                    learner = await self.keeper.restore()
                    self._model = _Model(learner, source) if learner is not None else None
                self._name_outside_writer()
                bounds = await self.log.bounds()
                if not self.log.held:  # the bounds may lack partitions
                    continue
                if self._model is None:
                    self._model = await self._begin(bounds, source)
                else:
                    await self._check(self._model, bounds)
                if self._model is None or not self.log.held:
                    continue
                learner = self._model.learner
                if learner.join and learner.join.stored and not await self._rebuild(self._model):
                    continue
                self.log.seek(learner.next)  # 3
                self._model.merge = self._new_merge(learner)
                assert self.keeper.head is not None  # noqa: S101 - a restored or begun model has a head
                self.observer.learning(learner, self.keeper.head, self.keeper.digest)
                self._began = True
                return self._model
            except errors.DependencyError as error:
                self.observer.unavailable(error)
                await self.clock.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
        return None

    def _drop(self, cause: str) -> None:
        """Step 6: drop the state, because another process's head is current."""
        self._model, self._displaced = None, True
        self.observer.rewound(cause)

    def _name_outside_writer(self) -> None:
        """Report a writer outside our consumer group: the group cannot stop it from taking our place repeatedly."""
        head, ours = self.keeper.head, self.keeper.writer.group
        if self._displaced and head is not None and head.writer.group not in ("", ours):
            self.observer.outside_writer(head.writer)
        self._displaced = False

    async def _begin(self, bounds: Bounds, source: TopicIdentity) -> _Model | None:
        """Begin a new model and save its first head; None if another process began it first."""
        resume_check.settings_of_reset(self.log.model, await self.keeper.required_identity(), self.identity)
        began = self._began or self.followed()
        learner = await self.keeper.new_learner(self.identity)
        if began:
            self.observer.snapshot_lost()
        # `start_at` is meant for new models. A model that was lost is learned again from offset 0, or not at all.
        start_at = None if began else self.start_at
        if isinstance(start_at, int):
            bounds, start_at = await self.log.bounds(start_at), "earliest"
            if not self.log.held:  # the bounds may lack partitions
                return None
        learner.begin(resume_check.first_offsets(self.log.topic_of, bounds, start_at))
        if (saved := await self.keeper.save(learner, {}, source)) is None:
            return None
        self.observer.saved(saved)
        return _Model(learner, source)

    async def _check(self, model: _Model, bounds: Bounds) -> None:
        """Raise DataError or ConfigurationError if the log or the settings no longer fit the model."""
        head, learner = self.keeper.head, model.learner
        assert head is not None  # noqa: S101 - the learner was restored from it
        recreated = head.source.recreated(model.source)
        resume_check.same_settings(self.log.model, head, self.identity, model.source)
        log = self.log.model, self.log.topic_of
        resume_check.check_offsets(*log, head, learner.next, bounds, recreated)
        await resume_check.check_last_records(self.log, head, recreated, self.observer)
        if learner.join and learner.join.stored:
            resume_check.check_held(*log, learner.join.stored.rebuild, bounds)
        if learner.main.diverged:
            raise errors.Diverged(self.log.model, learner.main.diverged)
        # All records of an added partition are newer than the model.
        added = {p: pair for p, pair in bounds.items() if p not in learner.next}
        start_at = None if isinstance(self.start_at, int) or self.start_at == "latest" else self.start_at
        learner.begin(resume_check.first_offsets(self.log.topic_of, added, start_at))
        began, dropped = learner.reconcile()
        if began or dropped:
            self.observer.reconciled(began, dropped, learner.next)

    async def _learn_records(self, model: _Model, records: KafkaRecords) -> None:
        learner, start = model.learner, 0
        while start < len(records):
            while learner.readers:
                await self.clock.sleep(SLICE_SECONDS)
            amid = learner.join and learner.join.is_amid_record
            if (not self.log.held and not amid) or self._model is None:
                return
            start += await self._apply(model, records[start : start + min(self._slice, MAX_SLICE_RECORDS)])
            await self.clock.sleep(0)

    def _new_merge(self, learner: Learner) -> Merge | None:
        identity, join = learner.identity, learner.join
        if not (join or identity.once or self.by_time):
            return None
        window = (identity.join.window if identity.join else identity.once) or DAY_MS
        labels_last = sorted(learner.covered, key=lambda p: (bool(join and join.is_of_labels(p)), p))
        self._waits_since = self.clock.now()
        return Merge(labels_last, window, step_of(window))

    def _ended_early(self, model: _Model, polled: Mapping[PartitionId, KafkaRecords]) -> str:
        """Which partition ended a day or more after records of others that come only now; "" if none did."""
        if len(model.last) < 2 or not polled:
            return ""
        oldest, now = min(int(records.timestamps[0]) for records in polled.values()), 1000 * self.clock.time()
        for partition in set(self.log.at_end()).intersection(model.last).difference(polled):
            # A producer may set no timestamp, which is -1 or 0, or one in the future.
            if oldest > 0 and (days := (min(model.last[partition].timestamp, now) - oldest) / DAY_MS) >= 1:
                return (
                    f"partition {partition} has ended, and others still have records {days:,.0f} days older, so "
                    'the model ends with what is old: event.order = "time" merges partitions by time'
                )
        return ""

    def _why_waiting(self, merge: Merge, join: Join | None) -> str:
        """Why events are not learned though records are there; "" if they are."""
        if not merge.waiting:
            self._waits_since = self.clock.now()
        if self.clock.now() - self._waits_since > WAIT_SECONDS:
            missing = ", ".join(str(partition) for partition in merge.short if partition not in self.log.at_end())
            return f"partitions are merged by time, and the next records of partition {missing} are not here yet"
        if join and (silent := join.silent):
            return (
                f"no labels have come lately in partition {', '.join(map(str, silent))}: windows stay open until they "
                f"come, or after `perceptron join resume -m {self.log.model}`"
            )
        return ""

    async def _rebuild(self, model: _Model) -> bool:
        """Read what a join remembers again, up to where the head stops; returns False if the log is lost."""
        learner, head = model.learner, self.keeper.head
        assert head and head.join and head.counts.join  # noqa: S101, PT018 - the learner was restored from this head
        join = learner.restore_join(head.join, head.counts.join)  # a part of it may have been read before
        starts, following = head.join.rebuild, learner.next
        self.log.seek(starts)
        total = sum(following.values()) - sum(starts.values())
        while left := {p: offset for p, offset in self.log.positions().items() if offset < following[p]}:
            self.observer.rebuilding(total - sum(following[p] - offset for p, offset in left.items()), total)
            for records in (await self.log.poll(partitions=left)).values():
                for start in range(0, len(records), MAX_SLICE_RECORDS):
                    part = records[start : start + MAX_SLICE_RECORDS]
                    learner.remember(part, [*given_answers(part, self.log.model, learner)])
                    await self.clock.sleep(0)
            if not self.log.held:
                return False
        if not join.finish_rebuild():
            raise errors.DataError(
                f"model {self.log.model}: the records that its join remembers are not those in the log any more: leave "
                f"them out with `perceptron join drop -m {self.log.model} --yes`"
            )
        self.observer.waiting("")
        return True

    def _skip_markers(self, model: _Model) -> None:
        """Cover offsets without records after the polled ones: transaction markers, aborted or compacted records."""
        learner, merge = model.learner, model.merge
        for partition, position in self.log.positions().items():
            if position > learner.next[partition] and (merge is None or merge.is_empty(partition)):
                learner.cover(partition, position)
        if gaps := self.log.take_gaps():
            for gap in gaps:
                learner.add_gap(gap.partition, (gap.start, gap.end))
            self.observer.gaps_accepted(gaps)

    async def _apply(self, model: _Model, records: KafkaRecords) -> int:
        """Learn the first records, up to one slice; returns how many."""
        now, started, counts = self.clock.now, self.clock.now(), model.learner.main.counts
        slice_, events = records[: records.within(SLICE_BYTES)], counts.events
        answers = [*given_answers(slice_, self.log.model, model.learner)]
        outcome = model.learner.apply(slice_, lambda: now() - started >= SLICE_SECONDS, answers)
        took, work = now() - started, outcome.consumed
        if model.learner.join:  # the events that are learned are not these records
            work += counts.events - events
        self._slice = max(MIN_SLICE_RECORDS, int(work * self.aim() / max(took, 1e-6)))
        for reject in outcome.rejects:
            partition, _ = records.place(reject.record)
            topic = self.log.topic_of(partition)
            letter = dead_letter(topic, partition.number, records, reject.record, reject.reason, reject.detail)
            await self.log.publish(letter)
            self.observer.set_aside(letter)
        last = {records.place(i)[0]: i for i in records.ends(outcome.consumed)}
        model.last |= {p: resume_check.fingerprint(records.record(i)) for p, i in last.items()}
        self.observer.learned(slice_.timestamps[: outcome.consumed], self.clock.now() - started)
        if outcome.diverged:
            if model.learner.join:  # the record is applied in part: the last head answers
                self._model = None
                raise errors.Diverged(self.log.model, outcome.diverged)
            await self._save(model)
            if self._model is None:
                return 0
            raise errors.Diverged(self.log.model, outcome.diverged)
        return outcome.consumed

    async def _save(self, model: _Model) -> None:
        learner, main = model.learner, model.learner.main
        if broken := await self.keeper.compute(learner, lambda: main.observations.failed_check(main.squared_norm)):
            # Learning cannot reach a state that the theorem excludes: memory or program are at fault. Save nothing.
            raise errors.DataError(
                f"model {self.log.model} is corrupt: {broken}; its last good version answers. A restart continues "
                f"from that version, and `perceptron verify -m {self.log.model}` compares it with the log"
            )
        try:
            with self.keeper.budget:
                await self.log.flush()
                if await self.log.source() != model.source:
                    # Some records may be from another topic of the same name: check again what the head covers.
                    self._model = None
                    self.observer.rewound("recreated")
                    return
                saved = await self.keeper.save(learner, dict(model.last), model.source)
        except errors.DependencyError as error:
            self.keeper.postpone()
            self.observer.save_failed(error)
            return
        if saved is None:
            self._drop("refused")
            return
        self.observer.saved(saved)
        self.log.commit(learner.next)


class _Logged(msgspec.Struct):
    label: Label


def given_answers(records: KafkaRecords, model: str, learner: Learner) -> Iterator[GivenAnswer]:
    """The answers of this model that records bring with them, in the headers that the log of predictions writes.

    An answer that is damaged, or that is no label of the model, is left out. A candidate that the model does not have
    has no tally of its own: its answers count as the model's.
    """
    labels = {(isinstance(label, bool), label): i for i, label in enumerate(learner.identity.labels or (-1, 1))}
    own = [i for i, name in records.header_values("model").items() if name == model.encode()]
    predictions, candidates = (records.header_values(name) if own else {} for name in ("prediction", "candidate"))
    for i in own:
        try:
            label = msgspec.json.decode(predictions.get(i, b""), type=_Logged).label
            candidate = candidates.get(i, b"").decode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if (index := labels.get((isinstance(label, bool), label))) is not None:
            yield GivenAnswer(i, index, candidate if candidate in learner.candidates else ALL)
