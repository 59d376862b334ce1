"""Decides which fetched batches of a partition may be learned, by their offsets alone.

No checksum covers a batch's first offset, and Kafka does not promise contiguous offsets: compaction leaves gaps that
stay. Three rules tell a gap from damage:

(a) A batch that starts before the expected offset is damage. Only the first batch after a seek may, and it must contain
    the offset.
(b) A batch that ends after the high watermark is damage.
(c) A batch after a gap is learned only if the next batch starts at or after its end, or if its end is the high
    watermark or the last stable offset. Until then it is held.

The first doubt raises no error. The broker reads its high watermark before the data, a transfer can go wrong, and a
broker skips a batch whose offsets became lower if a fetch starts there or shortly before. So the log is fetched again
from the start of the batch before the doubt: that response shows the batches before and after it. After a seek the
batch before is unknown, so the look back continues until it sees two batches in order, or the log's start.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from service.errors import DataError, LogGap


class OffsetRange(Protocol):
    """The offsets of a batch. Control batches and batches of aborted transactions count too."""

    @property
    def start(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """The offset after the last one."""


BatchOffsets = TypeVar("BatchOffsets", bound=OffsetRange)


class OffsetSequence(Generic[BatchOffsets]):
    """The batches of one partition since a seek."""

    def __init__(self, offset: int) -> None:
        self.position = offset
        """The offset after the last admitted batch, or the offset of the seek."""
        self.gaps: list[tuple[int, int]] = []
        """Accepted gaps, which the caller takes: the first offset without a batch, and the one after the last."""
        self._sought = True
        self.waiting: BatchOffsets | None = None
        """A batch after a gap, which waits for the batch that follows it."""
        self._doubted = -1
        """The position of the last doubt, for which the log was fetched again from before it."""
        self.looking_back = False
        """Whether the next fetch starts before `position`. The caller clears it if the log has lost those batches."""
        self._anchor, self._anchored, self._log_start = offset - 1, False, 0
        """A look back starts at the anchor: the last batch before `position`, or a guess until `_anchored`."""
        self._beyond: tuple[int, int] | None = None
        """A batch that ended after the high watermark of the previous response."""

    @property
    def fetch_offset(self) -> int:
        """The offset where the next fetch starts."""
        if self.looking_back:
            return max(self._anchor, self._log_start)
        return self.waiting.end if self.waiting is not None else self.position

    def doubt(self, reason: str, kind: type[DataError] = DataError) -> None:
        """Have the log fetched again from before `position`; raises this kind of error at the second doubt there."""
        if self._doubted == self.position:
            raise kind(f"at {self.position} {reason}")
        self._doubted, self.waiting, self.looking_back = self.position, None, self.position > self._log_start

    def admit(
        self, fetched: Sequence[BatchOffsets], cut_start: int | None, high_watermark: int, stable: int, log_start: int
    ) -> list[BatchOffsets]:
        """The batches that may be learned, of a response to a fetch at `fetch_offset`; moves `position` after them.

        `cut_start` is the first offset of the last batch, if the response has only the beginning of it. `stable` is the
        last stable offset. Raises LogGap.
        """
        batches, admitted = list(fetched), list[BatchOffsets]()
        looked_back, self.looking_back, self._log_start = self.looking_back, False, log_start
        preceding = self._pass_preceding(batches) if looked_back else []
        if looked_back and not self._ends_look_back(preceding, batches, cut_start):
            return []
        if self.waiting is not None:
            batches.insert(0, self.waiting)
            self.waiting = None
        for i, batch in enumerate(batches):
            following = batches[i + 1].start if i + 1 < len(batches) else cut_start
            agreed = following is None or following >= batch.end
            gap = batch.start > self.position
            contains = batch.start <= self.position < batch.end
            goes_on = _goes_on(batch)
            if batch.end > high_watermark:
                if self._beyond == (batch.start, batch.end):
                    raise LogGap(f"at {self.position} the log, which ends at {high_watermark}, {goes_on}")
                self._beyond = batch.start, batch.end
                break
            if not (gap or contains) or (batch.start < self.position and not self._sought):
                self.doubt(f"the log {goes_on}", LogGap)
                break
            first = i == 0 and not preceding  # the response shows no batch before it
            if (gap or self._sought or first) and not agreed:
                self.doubt(f"the log {goes_on}, and then with one from {following} on", LogGap)
                break
            at_end = batch.end in (high_watermark, stable)
            unseen = following is None or first
            # After a seek into a batch: if its offsets became lower, a gap follows it, and it overlaps the one before.
            gap_follows = batch.start < self.position and following != batch.end and not at_end
            if ((gap and unseen) or gap_follows) and self._doubted != self.position:
                self.doubt("offsets are missing", LogGap)
                break
            if gap:
                if following is None and not at_end:
                    self.waiting = batch
                    break
                self.gaps.append((self.position, batch.start))
            self.position, self._anchor, self._anchored, self._sought = batch.end, batch.start, True, False
            admitted.append(batch)
        return admitted

    def _pass_preceding(self, batches: list[BatchOffsets]) -> list[BatchOffsets]:
        """Remove the batches before `position` that are in order, and return them."""
        preceding = list[BatchOffsets]()
        while batches and batches[0].end <= self.position and (not preceding or batches[0].start >= preceding[-1].end):
            preceding.append(batches.pop(0))
        return preceding

    def _ends_look_back(
        self, preceding: Sequence[BatchOffsets], batches: Sequence[BatchOffsets], cut_start: int | None
    ) -> bool:
        """Whether this response shows the batch before `position`; if not, look back further. Raises LogGap."""
        if preceding and batches and batches[0].start < preceding[-1].end:
            self.doubt(f"the log {_goes_on(batches[0])}", LogGap)
        self.looking_back = True
        if not (self._anchored or len(preceding) > 1 or self._anchor <= self._log_start):
            # After a seek the batch before `position` may be damaged too, which the batch before that one shows.
            self._anchor -= self.position - self._anchor
            return False
        self._anchored = True
        if preceding:
            self._anchor = preceding[-1].start
            if not batches and cut_start is None and preceding[-1].end < self.position:
                self._anchor = preceding[-1].end  # in the next segment
                return False
        self.looking_back = not batches and cut_start is not None
        return not self.looking_back


def _goes_on(batch: OffsetRange) -> str:
    return f"goes on with a batch of offsets {batch.start} to {batch.end - 1}"
