"""The interfaces of the learning loop: a log to learn from, and an observer that reports what happens."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from service.errors import DataError, DependencyError
from service.learning.learner import Learner
from service.learning.records import PartitionId
from service.snapshots.head import Head, TopicIdentity, Writer
from service.snapshots.keeper import AcceptedSave
from service.streaming.records import KafkaRecord, KafkaRecords, Message

Bounds = Mapping[PartitionId, tuple[int, int]]
"""The first offset and the last stable offset, by partition."""


class Gap(NamedTuple):
    """Offsets between two batches that no batch contains: compaction removed them at some time."""

    partition: PartitionId
    start: int
    end: int
    """The offset after the last missing one."""


class Log(Protocol):
    """A model's log as this process sees it. Methods that ask Kafka raise DependencyError if it does not answer."""

    model: str

    def topic_of(self, partition: PartitionId) -> str:
        """The topic of a partition."""

    async def acquire(self) -> bool:
        """Wait until the log is ours (True) or the process is stopping (False)."""

    @property
    def held(self) -> bool:
        """Whether the log has been ours without interruption since the last `acquire`."""

    def release(self) -> None:
        """Say that learning has stopped, after a last save if that was possible: another process may have the log."""

    async def source(self) -> TopicIdentity:
        """The identity of the topics. A topic that was deleted and created again has another, whatever its offsets."""

    async def bounds(self, since: int = 0) -> Bounds:
        """The first offset and the end of each partition.

        With a time, in milliseconds since 1970, the first offset is that of the first record of this time or later,
        else the end.
        """

    def positions(self) -> Mapping[PartitionId, int]:
        """The offset where the next poll starts, by partition: after all polled offsets, with or without records."""

    def take_gaps(self) -> Sequence[Gap]:
        """Gaps between batches that were accepted since the last call."""

    async def records_at(self, offsets: Mapping[PartitionId, int]) -> Mapping[PartitionId, KafkaRecord]:
        """The records at these offsets, by partition, without those that the log lacks; none if it is not ours."""

    def seek(self, offsets: Mapping[PartitionId, int]) -> None:
        """Let the next poll start at these offsets, by partition."""

    def at_end(self) -> Collection[PartitionId]:
        """The partitions whose leader lately said that no record follows the polled ones."""

    async def poll(
        self, idle: bool = False, partitions: Collection[PartitionId] | None = None
    ) -> Mapping[PartitionId, KafkaRecords]:
        """Records by partition, in order; only of `partitions` if they are given.

        Returns nothing if none arrive for a short time, if `idle` a longer time.

        Offsets between the previous position and the records, and between records, have no record.

        Raises DependencyError if the log does not have the offset; `bounds` tell why. Raises DataError for a damaged
        batch, and LogGap for batches that do not follow each other, after all records before them were returned. If the
        topic was recreated and has the offset, reading continues as in the old topic: `source` tells them apart.
        """

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        """Commit the next offsets of a snapshot to Kafka, in the background. A commit that fails is dropped."""

    async def publish(self, letter: Message) -> None:
        """Hand over a dead letter; waits only if too many are unwritten."""

    async def flush(self) -> None:
        """Wait until every dead letter is acknowledged."""


class Observer(Protocol):
    """Reports what happens to one model, which this process learns, or follows while another process learns it."""

    def learning(self, learner: Learner, head: Head, digest: str) -> None:
        """We learn this model now, starting from this head."""

    def released(self) -> None:
        """We no longer learn it."""

    def learned(self, timestamps: NDArray[np.int64], seconds: float) -> None:
        """A slice of records with these timestamps (ms since 1970) was learned, and its rejects published."""

    def saved(self, saved: AcceptedSave) -> None:
        """A save was accepted."""

    def rewound(self, cause: str) -> None:
        """Our state was dropped, and will be restored from the current head."""

    def outside_writer(self, writer: Writer) -> None:
        """A process outside our consumer group wrote the head that replaced ours."""

    def reconciled(self, began: Sequence[str], dropped: Sequence[str], following: Mapping[PartitionId, int]) -> None:
        """The settings changed: the candidates `began` begin at the offsets `following`, `dropped` have ended."""

    def rebuilding(self, remembered: int, total: int) -> None:
        """Records that a join remembers are read again: `remembered` offsets of `total` were read so far."""

    def waiting(self, reason: str) -> None:
        """Why learning waits now though records are there, or is in an odd order; "" if neither."""

    def gaps_accepted(self, gaps: Sequence[Gap]) -> None:
        """These gaps between batches were accepted."""

    def fingerprint_missing(self, partition: PartitionId, offset: int) -> None:
        """The last record learned is no longer in the log, so it could not be compared."""

    def snapshot_lost(self) -> None:
        """The store lost the snapshot of a model that we had: it is learned again if the log begins at 0."""

    def set_aside(self, letter: Message) -> None:
        """A record was rejected."""

    def answered(self) -> None:
        """Log and store both answer."""

    def unavailable(self, error: DependencyError) -> None:
        """A dependency did not answer; we will try again."""

    def save_failed(self, error: DependencyError) -> None:
        """A save failed; the next one includes what it should have saved."""

    def stopped(self, error: Exception) -> None:
        """Learning stopped, here or in the process that is followed, because of an error that waiting does not mend."""

    def followed(self) -> None:
        """A newer snapshot answers now, since another process learns the model."""

    def unusable(self, error: DataError) -> None:
        """The store's newest snapshot is damaged or of another release. The model that answers stays."""
