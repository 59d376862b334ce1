"""What the loop that learns needs of the world: a log to learn from, and somebody who hears what happens."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from service.errors import DependencyError
from service.learning.learner import Learner
from service.snapshots.head import Head, Source, Writer
from service.snapshots.keeper import AcceptedSave
from service.streaming.dead_letters import DeadLetter
from service.streaming.records import KafkaRecord, KafkaRecords


class Gap(NamedTuple):
    """Offsets between two batches that no batch has: compaction took them, now or once."""

    partition: int
    start: int
    end: int
    """The offset after the last of them."""


class Log(Protocol):
    """One topic as this process sees it. Methods that ask Kafka raise DependencyError when it does not answer."""

    topic: str

    async def acquire(self) -> bool:
        """Wait until the topic is ours (True) or the process is stopping (False)."""

    @property
    def held(self) -> bool:
        """Whether the topic is still ours since the last `acquire`."""

    def release(self) -> None:
        """We have let the topic go; somebody else may have it."""

    async def source(self) -> Source:
        """Which topic this is now: one that was deleted and created again is another, whatever its offsets."""

    async def bounds(self) -> dict[int, tuple[int, int]]:
        """First offset of, and next offset to be written to, each partition."""

    def positions(self) -> Mapping[int, int]:
        """Where the next poll goes on, by partition: after everything polled, records or not."""

    def take_gaps(self) -> Sequence[Gap]:
        """Gaps between batches that were accepted since the last call."""

    async def read(self, partition: int, offset: int) -> KafkaRecord | None:
        """The record at this offset, or None if the log has none there (any more). The position is anywhere then."""

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets."""

    async def poll(self, idle: bool = False) -> Mapping[int, KafkaRecords]:
        """Records by partition, in order, none after a short while; a longer one, if `idle`: nothing else is to do.

        Offsets between the position before and the records, and between records, hold none.

        Raises DependencyError if the log has no such offset; `bounds` say why. Raises LogGap if the log's batches do
        not follow on each other, once what is before was returned. A topic that was created again and has the offset is
        read on as if it were the old one: `source` says so.
        """

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell Kafka how far a snapshot covers the topic, some time soon."""

    async def publish(self, letter: DeadLetter) -> None:
        """Hand over a dead letter; waits only when very many are under way."""

    async def flush(self) -> None:
        """Wait until every dead letter is acknowledged."""


class Observer(Protocol):
    """Hears what happens to one model."""

    def learning(self, learner: Learner, head: Head, digest: str) -> None:
        """We learn this model now, from this head on."""

    def released(self) -> None:
        """We do not learn it any more."""

    def learned(self, records: int, seconds: float, delay: float) -> None:
        """A slice was read, in `seconds`, and its events learned; its last record was written `delay` seconds ago."""

    def saved(self, saved: AcceptedSave) -> None:
        """A save was accepted."""

    def rewound(self, cause: str) -> None:
        """State was dropped, to be restored from the current head."""

    def outside_writer(self, writer: Writer) -> None:
        """The head that took the place of ours was written by somebody outside our group."""

    def reconciled(self, began: Sequence[str], dropped: Sequence[str], following: Mapping[int, int]) -> None:
        """Of a stored model these candidates begin here, where it goes on, and these are not learned any more."""

    def gaps_accepted(self, gaps: Sequence[Gap]) -> None:
        """These gaps between batches were accepted."""

    def fingerprint_missing(self, partition: int, offset: int) -> None:
        """The last record learned is not in the log any more, so it could not be compared."""

    def snapshot_lost(self) -> None:
        """The store has no snapshot of a model that we had: it is learned again, if the log begins at 0."""

    def set_aside(self, letter: DeadLetter) -> None:
        """A record was rejected."""

    def answered(self) -> None:
        """Log and store both answer."""

    def unavailable(self, error: DependencyError) -> None:
        """A dependency did not answer; it is tried again."""

    def save_failed(self, error: DependencyError) -> None:
        """A save did not succeed; what it was to save is part of the next one."""

    def stopped(self, error: Exception) -> None:
        """Learning of this model ended for a reason that waiting does not mend."""
