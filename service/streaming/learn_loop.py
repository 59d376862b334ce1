"""The loop that learns one topic.

1. WAITING: wait until Kafka gives us the topic.
2. RESTORING: restore the current head; where there is none, begin a model and save its first head before its first
   event.
3. Seek to where the head stops.
4. LEARNING: poll. Apply records in slices, a turn of the event loop between them; publish the rejected ones as dead
   letters. The log returns records in order, and raises if its batches do not follow on each other.
5. When due: flush the dead letters, look whether it was one topic all along, save, tell Kafka the offsets (advisory:
   nothing reads them back).
6. Refused: somebody else went on from our head. Drop the state and go to 2.
7. Revoked or stopping: save a last time, let the topic go, and go to 1 or end.
8. STOPPED: what waiting does not mend is told, and the stored model watched, until it is another one.

Only `Log`, the keeper's `Store` and `Clock` are awaited, so that one test can drive this through any
interleaving. What happened is told to an `Observer`; nothing here logs, counts or serves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from service.errors import (
    ConfigurationError,
    DataError,
    DependencyError,
    Diverged,
    LogLost,
    SnapshotDamaged,
    SnapshotForeign,
)
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.snapshots.head import Fingerprint, Source
from service.snapshots.keeper import Keeper, SaveRefused
from service.snapshots.ports import Clock
from service.streaming.dead_letters import dead_letter
from service.streaming.ports import Log, Observer
from service.streaming.records import KafkaRecords
from service.streaming.resume_check import check_resumable, fingerprint

MAX_SLICE_RECORDS = 4000
SLICE_BYTES = 1 << 20
SLICE_SECONDS = 0.005
"""The records, their bytes and the time after which the event loop turns: predictions wait for at most one slice. A
single record may be more, and how long that takes is the decoder's concern."""
FIRST, LEAST, AIM_SECONDS = 200, 50, 0.002
"""Of records that take longer a slice has fewer, so that it takes about so long, but not less than so many."""
LONGEST_PAUSE = 5.0
"""Between two tries to restore."""
CONFIRM_SECONDS = 1.0
"""So often an idle learner asks whether its head is current, where nobody looked for it."""

UNREADABLE_ERRORS = SnapshotDamaged, SnapshotForeign
"""What a stored head is that somebody may put right."""

StartAt = str | Mapping[int, int] | None
"""Where a model without a snapshot begins: "earliest", "latest", offsets by partition, or only a log from 0."""


class State(Enum):
    """Where the loop is. It holds its model in all of them but STOPPED: where its head is current, it goes on."""

    WAITING = "the topic is not ours"
    RESTORING = "it is ours: the current head is read, or a first one written"
    LEARNING = "records are polled, learned and saved"
    STOPPED = "waiting does not mend it: the stored model is watched"
    ENDED = "the process is stopping"


@dataclass
class _Model:
    """The model that is learned. It is dropped as a whole."""

    learner: Learner
    source: Source
    """Which topic it is learned from."""
    last: dict[int, Fingerprint] = field(default_factory=dict)
    """Of the last record learned of each partition, so that it is recognised later."""


class LearnLoop:
    """Learns one topic for as long as the process runs."""

    def __init__(
        self,
        log: Log,
        keeper: Keeper,
        clock: Clock,
        tell: Observer,
        identity: Identity,
        start_at: StartAt = None,
        known: Callable[[], bool] = lambda: False,
        looked: Callable[[], str | None] = lambda: None,
        aim: Callable[[], float] = lambda: AIM_SECONDS,
    ) -> None:
        """`known` says whether the model was there before, though we have not learned it: a standby followed it.

        `looked` is the digest of the store's head as this process last saw it, or None where it did not look. `aim` is
        how many seconds a slice is to take now.
        """
        self._log, self._keeper, self._clock, self._tell = log, keeper, clock, tell
        self._identity, self._start_at, self._known, self._looked, self._aim = identity, start_at, known, looked, aim
        self.state = State.WAITING
        self._model: _Model | None = None
        self._reason: Exception | None = None
        """Why we are STOPPED."""
        self._began = False
        """Whether we ever learned it. A model that is then not there any more was lost, and is none that is new."""
        self._displaced = False
        """Whether somebody took our place since the last head was read."""
        self._slice = FIRST
        """Of records like the last ones."""
        self._confirmed: tuple[float, str | None] = 0.0, None
        """When our head was last looked at, and what the process's look had found then."""

    async def run(self) -> None:
        """From state to state, until the log says that the process is stopping."""
        steps = {
            State.WAITING: self._wait,
            State.RESTORING: self._restore,
            State.LEARNING: self._learn,
            State.STOPPED: self._watch_stopped,
        }
        try:
            while self.state is not State.ENDED:
                try:
                    self.state = await steps[self.state]()
                except (DataError, ConfigurationError) as error:
                    self._model, self._reason, self.state = None, error, State.STOPPED
        finally:
            self._release()

    async def _wait(self) -> State:
        """Step 1, and the end of step 7."""
        self._release()
        return State.RESTORING if await self._log.acquire() else State.ENDED

    def _release(self) -> None:
        self._tell.released()
        self._log.release()

    async def _watch_stopped(self) -> State:
        """Step 8: wait until the topic is lost, or the stored model is another one: reset, rolled back.

        One that is damaged, or another release's, is looked at again a little later: somebody may put it right.
        """
        assert self._reason is not None  # noqa: S101 - what brought us here
        self._tell.stopped(self._reason)
        self._tell.released()
        while self._log.held:
            await self._clock.sleep(1.0)
            try:
                if (
                    isinstance(self._reason, UNREADABLE_ERRORS)
                    or await self._keeper.stored_digest() != self._keeper.digest
                ):
                    break
            except DependencyError as error:
                self._tell.unavailable(error)
        return State.WAITING

    async def _learn(self) -> State:
        """Steps 4 to 7, until the topic is lost or the state was dropped."""
        model = self._model
        assert model is not None  # noqa: S101 - it was restored
        learner, reason = model.learner, None
        try:
            while self._log.held and self._model is not None:
                polled = await self._log.poll(not self._keeper.ahead(learner))  # 4
                for partition, records in polled.items():
                    await self._learn_records(model, partition, records)
                if self._log.held and self._model is not None:
                    self._skip_markers(learner)
                if self._model is not None and self._keeper.due(learner):
                    await self._save(model)  # 5
                    await self._clock.sleep(0)  # what follows is a turn of its own
                elif not polled:
                    await self._confirm()
        except DependencyError as error:
            self._tell.unavailable(error)
            await self._clock.sleep(0.5)
        except DataError as error:
            reason = error  # what came before it is learned, and saved as far as it may be
        # 7. On a head that could not be read nothing is saved, even where it was put right meanwhile: it is restored
        # anew.
        if self._model is not None and self._keeper.ahead(learner) and not isinstance(reason, UNREADABLE_ERRORS):
            await self._save(model)
        if reason is not None:
            raise reason
        return State.RESTORING if self._log.held else State.WAITING

    async def _confirm(self) -> None:
        """While nothing comes, look whether our head is still current: the model may have been reset."""
        now, looked = self._clock.now(), self._looked()
        if looked == self._confirmed[1] and now - self._confirmed[0] < CONFIRM_SECONDS:
            return
        self._confirmed = now, looked
        try:
            # A look may be of before our last save: it can only say that all is well.
            if looked != self._keeper.digest and not await self._keeper.current():
                self._drop("replaced")
            self._tell.answered()
        except DependencyError as error:
            self._tell.unavailable(error)  # learning goes on without it

    async def _restore(self) -> State:
        """Steps 2 and 3, until the log is sought to where the current head stops, or the topic is lost."""
        pause = 0.1
        while self._log.held:
            try:
                source = await self._log.source()
                # A rebalance that gave the topic back to us finds our head current and our state good.
                if self._model is None or self._model.source != source or not await self._keeper.current():
                    self._model = None
                    learner = await self._keeper.restore()
                    self._model = _Model(learner, source) if learner is not None else None
                self._name_outside_writer()
                bounds = await self._log.bounds()
                if not self._log.held:  # the bounds are those of no partition, or of some
                    continue
                if self._model is None:
                    learner = await self._begin(bounds, source)
                    self._model = _Model(learner, source) if learner is not None else None
                else:
                    await self._check(self._model, bounds)
                if self._model is None or not self._log.held:
                    continue
                learner = self._model.learner
                self._log.seek(learner.next)  # 3
                assert self._keeper.head is not None  # noqa: S101 - a restored or begun model has a head
                self._tell.learning(learner, self._keeper.head, self._keeper.digest)
                self._began = True
                return State.LEARNING
            except DependencyError as error:
                self._tell.unavailable(error)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return State.WAITING

    def _drop(self, cause: str) -> None:
        """Step 6: somebody else's head is current."""
        self._model, self._displaced = None, True
        self._tell.rewound(cause)

    def _name_outside_writer(self) -> None:
        """The group gives a topic to one member: who took our place and is not in it never stops doing so."""
        head, ours = self._keeper.head, self._keeper.writer.group
        if self._displaced and head is not None and head.writer.group not in ("", ours):
            self._tell.outside_writer(head.writer)
        self._displaced = False

    async def _begin(self, bounds: Mapping[int, tuple[int, int]], source: Source) -> Learner | None:
        """A new model, its first head saved; None where somebody else began it."""
        began = self._began or self._known()
        learner = await self._keeper.new_learner(self._identity)
        if began:
            self._tell.snapshot_lost()
        # Where to begin is said for a new model. One that was lost is learned again from 0, or not at all.
        learner.begin(self._starts(bounds, None if began else self._start_at))
        saved = await self._keeper.save(learner, {}, source)
        if isinstance(saved, SaveRefused):
            return None
        self._tell.saved(saved)
        return learner

    async def _check(self, model: _Model, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Raises DataError or ConfigurationError where log or settings do not fit the model any more."""
        head, learner = self._keeper.head, model.learner
        assert head is not None  # noqa: S101 - a learner that was there is a head's
        await check_resumable(self._log, head, self._identity, model.source, learner.next, bounds, self._tell)
        if learner.diverged:
            raise Diverged(self._log.topic, learner.diverged)
        # A partition that was added: all of its records are newer than the model.
        added = {p: found for p, found in bounds.items() if p not in learner.next}
        learner.begin(self._starts(added, None if self._start_at == "latest" else self._start_at))
        began, dropped = learner.reconcile()
        if began or dropped:
            self._tell.reconciled(began, dropped, learner.next)

    def _starts(self, bounds: Mapping[int, tuple[int, int]], start_at: StartAt) -> dict[int, int]:
        """Where a new model, or a new partition of one, begins."""
        if isinstance(start_at, str):
            return {p: begin if start_at == "earliest" else end for p, (begin, end) in bounds.items()}
        chosen = start_at or {}
        for partition, (begin, end) in sorted(bounds.items()):
            offset = chosen.get(partition, 0)
            if not begin <= offset <= end:
                raise LogLost(
                    f"topic {self._log.topic}: learning would begin at offset {offset} of partition {partition}, "
                    f"which holds {begin} to {end}: say where with --start-at earliest, latest or {partition}:OFFSET"
                )
        return {p: chosen.get(p, 0) for p in bounds}

    async def _learn_records(self, model: _Model, partition: int, records: KafkaRecords) -> None:
        learner = model.learner
        for run in records.runs():
            learner.cover(partition, int(run.offsets[0]))
            start = 0
            while start < len(run):
                if not self._log.held or self._model is None:
                    return
                start += await self._apply(model, partition, run[start : start + min(self._slice, MAX_SLICE_RECORDS)])
                await self._clock.sleep(0)

    def _skip_markers(self, learner: Learner) -> None:
        """Cover offsets after what was polled that hold no record: transaction markers, aborted or compacted ones."""
        for partition, position in self._log.positions().items():
            if position > learner.next[partition]:
                learner.cover(partition, position)
        if gaps := self._log.take_gaps():
            for partition, *gap in gaps:
                learner.observations.add_gap(partition, (gap[0], gap[1]))
            self._tell.gaps_accepted(gaps)

    async def _apply(self, model: _Model, partition: int, records: KafkaRecords) -> int:
        """Learn the first of these records, as many as make a slice, and say how many."""
        now, started = self._clock.now, self._clock.now()
        slice_ = records[: records.within(SLICE_BYTES)]
        outcome = model.learner.apply(partition, slice_, lambda: now() - started >= SLICE_SECONDS)
        took = now() - started
        self._slice = max(
            LEAST,
            int(MAX_SLICE_RECORDS if took <= 0.0 else min(MAX_SLICE_RECORDS, outcome.consumed * self._aim() / took)),
        )
        for reject in outcome.rejects:
            letter = dead_letter(self._log.topic, partition, records, reject.record, reject.reason, reject.detail)
            await self._log.publish(letter)
            self._tell.set_aside(letter)
        if outcome.consumed:
            model.last[partition] = fingerprint(records.record(outcome.consumed - 1))
        delay = self._clock.time() - int(records.timestamps[max(outcome.consumed, 1) - 1]) / 1000
        self._tell.learned(outcome.consumed, self._clock.now() - started, delay)
        if outcome.diverged:
            await self._save(model)
            if self._model is None:
                return 0
            raise Diverged(self._log.topic, outcome.diverged)
        return outcome.consumed

    async def _save(self, model: _Model) -> None:
        learner = model.learner
        if broken := await self._keeper.compute(
            learner, lambda: learner.observations.failed_check(learner.squared_norm)
        ):
            # What the theorem excludes cannot have been learned: memory or program are at fault, so nothing is saved.
            raise DataError(
                f"model {self._log.topic} is corrupt: {broken}; its last good version answers. A restart goes on from "
                f"that one, and `perceptron verify -t {self._log.topic}` compares it with the log"
            )
        try:
            with self._keeper.saving():
                await self._log.flush()
                if await self._log.source() != model.source:
                    # Some of it may be of another topic under the same name: what the head covers is looked at again.
                    self._model = None
                    self._tell.rewound("recreated")
                    return
                saved = await self._keeper.save(learner, dict(model.last), model.source)
        except DependencyError as error:
            self._keeper.postpone()
            self._tell.save_failed(error)
            return
        if isinstance(saved, SaveRefused):
            self._drop("refused")
            return
        self._tell.saved(saved)
        self._log.commit(learner.next)
