"""The loop that learns one topic.

1. Wait until Kafka gives us the topic.
2. Restore the current head; where there is none, begin a model and save its first head before its first event.
3. Seek to where the head stops.
4. Poll. Apply records in slices, a turn of the event loop between them; publish the rejected ones as dead letters.
   Only the record at the next offset is applied; a gap is fetched again once, then accepted or the end.
5. When due: flush the dead letters, look whether it was one topic all along, save, tell Kafka the offsets (advisory:
   nothing reads them back).
6. Refused: somebody else went on from our head. Drop the state and go to 2.
7. Revoked or stopping: save a last time, let the topic go, and go to 1 or end.

Only `Log`, the keeper's `Store` and `Clock` are awaited, so that one test can drive this through any
interleaving. What happened is told to an `Observer`; nothing here logs, counts or serves.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from service.errors import ConfigurationError, DataError, DependencyError, Diverged, IdentityChanged, LogLost
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.snapshots.head import Fingerprint, Source
from service.snapshots.keeper import Clock, Keeper, Refused
from service.streaming.dead_letters import dead_letter
from service.streaming.interfaces import Log, Observer, Record

SLICE = 200
"""Records learned before the event loop turns: predictions wait for at most one slice."""
LONGEST_PAUSE = 5.0
CONFIRM_SECONDS = 1.0

StartAt = str | Mapping[int, int] | None
"""Where a model without a snapshot begins: "earliest", "latest", offsets by partition, or only a log from 0."""


class Learning:
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
    ) -> None:
        """`known` says whether the model was there before, though we have not learned it: a standby followed it."""
        self._log, self._keeper, self._clock, self._tell = log, keeper, clock, tell
        self._identity, self._start_at, self._known = identity, start_at, known
        self._learner: Learner | None = None
        self._last: dict[int, Record] = {}
        self._refetched: dict[int, int] = {}
        self._began = False
        self._confirmed = 0.0
        self._source = Source()
        """Of what our state was learned from, or is to go on with."""

    async def run(self) -> None:
        """Steps 1 to 7, until the log says that the process is stopping."""
        while await self._log.acquire():
            try:
                while self._log.held:
                    await self._hold()
            except (DataError, ConfigurationError) as error:
                self._learner = None
                self._tell.stopped(error)
                await self._decision()
            finally:
                self._tell.resigned()
                self._log.release()

    async def _decision(self) -> None:
        """Wait until the topic is lost, or the stored model is another one: reset, rolled back, or never restored.

        One that is damaged was not restored, so it is looked at again, a little later: somebody may put it right.
        """
        self._tell.resigned()
        while self._log.held:
            await self._clock.sleep(1.0)
            try:
                if await self._keeper.stored_digest() != self._keeper.digest:
                    return
            except DependencyError as error:
                self._tell.unavailable(error)

    async def _hold(self) -> None:
        """Steps 2 to 7, until the topic is lost or the state was dropped."""
        learner = await self._restore()
        if learner is None:
            return
        reason: DataError | None = None
        try:
            while self._log.held and self._learner is not None:
                polled = await self._log.poll()
                for partition, records in polled.items():
                    await self._take(learner, partition, records)
                if self._log.held and self._learner is not None:
                    await self._pass_markers(learner)
                if self._learner is not None and self._keeper.due(learner):
                    await self._save(learner)
                elif not polled and self._clock.now() - self._confirmed > CONFIRM_SECONDS:
                    await self._confirm()
        except DependencyError as error:
            self._tell.unavailable(error)
            await self._clock.sleep(0.5)
        except DataError as error:
            reason = error  # what came before it is learned, and saved as far as it may be
        if self._learner is not None and self._keeper.ahead(learner):
            await self._save(learner)
        if reason is not None:
            raise reason

    async def _confirm(self) -> None:
        """While nothing comes, look whether our head is still current: the model may have been reset."""
        self._confirmed = self._clock.now()
        try:
            if not await self._keeper.current():
                self._learner = None
                self._tell.rewound("replaced")
            self._tell.answered()
        except DependencyError as error:
            self._tell.unavailable(error)  # learning goes on without it

    async def _restore(self) -> Learner | None:
        """The learner of the current head, sought to where it stops; None when the topic is lost meanwhile."""
        pause = 0.1
        while self._log.held:
            try:
                # A rebalance that gave the topic back to us finds our head current and our state good.
                before, self._source = self._source, await self._log.source()
                if self._learner is None or before != self._source or not await self._keeper.current():
                    self._learner = None
                    self._last.clear()
                    self._learner = await self._keeper.restore()
                learner = await self._check(self._learner)
                if learner is None or not self._log.held:
                    continue
                self._learner = learner
                self._log.seek(learner.next)
                self._refetched.clear()  # what was fetched again before this seek says nothing of fetches after it
                assert self._keeper.head is not None  # noqa: S101 - a restored or begun model has a head
                self._tell.learning(learner, self._keeper.head, self._keeper.digest)
                self._began = True
                return learner
            except DependencyError as error:
                self._tell.unavailable(error)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return None

    async def _check(self, learner: Learner | None) -> Learner | None:
        """The learner, if log and settings still fit; a new one, its first head saved; None if refused or lost."""
        bounds = await self._log.bounds()
        if not self._log.held:  # the bounds are those of no partition, or of some
            return None
        if learner is None:
            began = self._began or self._known()
            learner = Learner(self._identity, options=self._keeper.options, start=self._keeper.start)
            if began:
                self._tell.emptied()
            # Where to begin is said for a new model. One that was lost is learned again from 0, or not at all.
            learner.begin(self._starts(bounds, None if began else self._start_at))
            saved = await self._keeper.save(learner, {}, self._source)
            if isinstance(saved, Refused):
                return None
            self._tell.saved(saved)
            return learner
        differences = self._identity.differences(learner.identity)
        if differences:
            raise identity_changed(self._log.topic, differences)
        if learner.diverged:
            raise Diverged(self._log.topic, learner.diverged)
        another = self._keeper.head and self._keeper.head.source.unlike(self._source)
        for partition, offset in sorted(learner.next.items()):
            if partition not in bounds and not another:
                # No topic loses partitions: whoever assigns them has not heard of one that was added.
                raise DependencyError(
                    f"topic {self._log.topic}: partition {partition}, which was learned, is not given to us yet",
                    "kafka",
                )
            begin, end = bounds.get(partition, (0, 0))
            if not begin <= offset <= end:
                raise LogLost(
                    f"topic {self._log.topic}: partition {partition} holds offsets {begin} to {end}, but the snapshot "
                    f"goes on at {offset}: the log was trimmed or the topic recreated. `perceptron reset -t "
                    f"{self._log.topic} --yes` forgets the model, so that it begins anew"
                )
        await self._recognise()
        # A partition that was added: all of its records are newer than the model.
        added = {p: found for p, found in bounds.items() if p not in learner.next}
        learner.begin(self._starts(added, None if self._start_at == "latest" else self._start_at))
        return learner

    async def _recognise(self) -> None:
        """Check that the log is the one that was learned: the last record of each partition is still that record.

        Where compaction or retention took the record, it cannot be checked, which is said; unless the topic's id is
        another. One that was created again and has the record was given back what it had.
        """
        head = self._keeper.head
        if head is None:
            return
        unlike = head.source.unlike(self._source)
        for name, position in head.next.items():
            partition, known = int(name), position.fingerprint
            learned = any(start < to for start, to in head.covered[name])
            record = await self._log.read(partition, known.offset) if known else None
            if record is None and unlike and learned:
                raise LogLost(
                    f"topic {self._log.topic}: {unlike}, and of partition {partition} it has no record to compare with "
                    f"the last one learned{f', at offset {known.offset}' if known else ''}: give it back its records, "
                    f"or begin anew with `perceptron reset -t {self._log.topic} --yes`"
                )
            if known and record is None:
                self._tell.unrecognised(partition, known.offset)
            elif known and record and fingerprint(record) != known:
                raise LogLost(
                    f"topic {self._log.topic}: the record at offset {known.offset} of partition {partition} is not the "
                    f"one that was learned, so the topic was recreated: give it back its records, or begin anew with "
                    f"`perceptron reset -t {self._log.topic} --yes`"
                )

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

    async def _take(self, learner: Learner, partition: int, records: Sequence[Record]) -> None:
        polled_from = learner.next[partition]
        for run in contiguous(records):
            first, expected = run[0].offset, learner.next[partition]
            if first < expected:
                run = run[expected - first :]  # noqa: PLW2901 - the rest of it
            elif first > expected:
                # Between records of one poll the log has no others; before the first of them, we may have lost some.
                if expected == polled_from and not await self._gap(partition, expected):
                    return
                self._pass_over(learner, partition, first)
            for i in range(0, len(run), SLICE):
                if not self._log.held or self._learner is None:
                    return
                await self._apply(learner, partition, run[i : i + SLICE])
                await self._clock.sleep(0)

    async def _pass_markers(self, learner: Learner) -> None:
        """Cover offsets behind what was polled that hold no record: transaction markers, aborted or compacted ones."""
        positions = await self._log.positions()
        if not self._log.held:  # they may be those of another assignment, from offsets that are not ours
            return
        for partition, position in positions.items():
            # A seek after a gap puts the position back; then there is nothing to pass.
            if position > learner.next.get(partition, position):
                self._pass_over(learner, partition, position)

    def _pass_over(self, learner: Learner, partition: int, offset: int) -> None:
        self._tell.passed_over(partition, learner.next[partition], offset)
        learner.pass_over(partition, offset)

    async def _gap(self, partition: int, expected: int) -> bool:
        """Whether learning may go on behind `expected`, which was next and did not come."""
        if self._refetched.get(partition) != expected:
            self._refetched[partition] = expected
            self._log.seek({partition: expected})
            return False
        bounds = await self._log.bounds()
        if not self._log.held:  # the bounds are those of no partition, or of some
            return False
        begin, _ = bounds[partition]
        if begin > expected:
            raise LogLost(
                f"topic {self._log.topic}: partition {partition} begins at {begin}, but {expected} was the next "
                f"offset to learn: events are gone. `perceptron reset -t {self._log.topic} --yes` begins anew"
            )
        return True

    async def _apply(self, learner: Learner, partition: int, records: Sequence[Record]) -> None:
        started = self._clock.now()
        outcome = learner.apply(partition, records[0].offset, [record.value for record in records])
        for reject in outcome.rejects:
            r = records[reject.record]
            letter = dead_letter(
                self._log.topic, partition, r.offset, r.key, r.value, r.headers, reject.reason, reject.detail
            )
            await self._log.publish(letter)
            self._tell.set_aside(letter)
        if outcome.consumed:
            self._last[partition] = records[outcome.consumed - 1]
        delay = self._clock.time() - records[-1].timestamp / 1000
        self._tell.learned(self._clock.now() - started, delay)
        if outcome.diverged:
            await self._save(learner)
            if self._learner is None:
                return
            raise Diverged(self._log.topic, outcome.diverged)

    async def _save(self, learner: Learner) -> None:
        if broken := learner.broken:
            # What the theorem excludes cannot have been learned: memory or program are at fault, so nothing is saved.
            raise DataError(
                f"model {self._log.topic} is corrupt: {broken}; its last good version answers. A restart goes on from "
                f"that one, and `perceptron verify -t {self._log.topic}` compares it with the log"
            )
        fingerprints = {partition: fingerprint(record) for partition, record in self._last.items()}
        try:
            await self._log.flush()
            if await self._log.source() != self._source:
                # Some of it may be of another topic under the same name: what the head covers is looked at again.
                self._learner = None
                self._tell.rewound("recreated")
                return
            saved = await self._keeper.save(learner, fingerprints, self._source)
        except DependencyError as error:
            self._keeper.postpone()
            self._tell.save_failed(error)
            return
        if isinstance(saved, Refused):
            self._learner = None
            self._tell.rewound("refused")
            return
        self._tell.saved(saved)
        self._log.commit(learner.next)


def fingerprint(record: Record) -> Fingerprint:
    """What a record is recognised by."""
    crc = zlib.crc32(record.value or b"", zlib.crc32(record.key or b""))
    return Fingerprint(record.offset, record.timestamp, crc)


def contiguous(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Records cut where offsets do not follow on each other."""
    if records and records[-1].offset - records[0].offset == len(records) - 1:
        yield records
        return
    start = 0
    for i in range(1, len(records) + 1):
        if i == len(records) or records[i].offset != records[i - 1].offset + 1:
            yield records[start:i]
            start = i


def identity_changed(model: str, differences: Sequence[str]) -> IdentityChanged:
    """The refusal of a stored model under other settings: what differs, and the two ways out."""
    return IdentityChanged(
        f"model {model} was learned under other settings ({'; '.join(differences)}): "
        f"restore them, or forget the model with `perceptron reset -t {model} --yes`"
    )
