"""Which fetched batches of a partition may be learned, judged by their offsets alone.

A batch's first offset is covered by no checksum, and Kafka never promises contiguous offsets: compaction leaves gaps
for ever. Three rules tell a gap from damage:

(a) A batch that starts before the expected offset is damage. Only the first batch after a seek may, and it must contain
    the offset.
(b) A batch that ends after the high watermark is damage.
(c) A batch after a gap is learned only if what follows agrees: the next batch starts at or after its end, or its end is
    the high watermark or the last stable offset. Until then it is held.

A first doubt is not a verdict. The broker reads its high watermark before the data, a transfer can go wrong, and a
broker skips a batch whose offsets became lower if a fetch starts there or shortly before. So the log is fetched once
more, from where the batch before the doubt starts: there the batches before and after it can be seen. After a seek that
batch is not known, so the look back goes on until two batches in order, or the log's start, are in view.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class OffsetRange(Protocol):
    """A batch, as far as its offsets go. Control batches and those of aborted transactions count."""

    @property
    def start(self) -> int:
        """Its first offset."""

    @property
    def end(self) -> int:
        """The offset after its last."""


BatchOffsets = TypeVar("BatchOffsets", bound=OffsetRange)


class OffsetDamage(Exception):
    """The log cannot be read on: a batch is not in its place."""


class BatchDamage(OffsetDamage):
    """The log cannot be read on: the next batch is damaged itself."""


class OffsetSequence(Generic[BatchOffsets]):
    """The batches of one partition from a seek on."""

    def __init__(self, offset: int) -> None:
        self.position = offset
        """The offset after the last admitted batch, or where the seek went."""
        self.gaps: list[tuple[int, int]] = []
        """Accepted gaps since the list was last emptied: first offset without a batch, and the one after the last."""
        self._sought = True
        self._held: BatchOffsets | None = None
        self._doubted = -1
        """The position at which something was wrong, and from before which the log was fetched once more."""
        self._looking_back = False
        self._anchor, self._anchored, self._log_start = offset - 1, False, 0
        """Where a look back starts: at the last batch before `position`, or if not anchored yet at a guess."""
        self._beyond: tuple[int, int] | None = None
        """A batch that ended after the high watermark of the response before."""

    @property
    def fetch_offset(self) -> int:
        """Where the next fetch starts."""
        if self._looking_back:
            return max(self._anchor, self._log_start)
        return self._held.end if self._held is not None else self.position

    @property
    def holds(self) -> bool:
        """Whether a batch after a gap waits for what follows it."""
        return self._held is not None

    def stop_looking_back(self) -> None:
        """The log has nothing before `position` any more: go on from there."""
        self._looking_back = False

    def doubt(self, reason: str, kind: type[OffsetDamage] = BatchDamage) -> None:
        """Have the log fetched once more from before `position`; raises this kind of error at the second time there."""
        if self._doubted == self.position:
            raise kind(f"at {self.position} {reason}")
        self._doubted, self._held, self._looking_back = self.position, None, self.position > self._log_start

    def admit(
        self,
        fetched: Sequence[BatchOffsets],
        cut_start: int | None,
        high_watermark: int,
        stable: int,
        log_start: int = 0,
    ) -> list[BatchOffsets]:
        """The batches of a response to a fetch at `fetch_offset` that may be learned; `position` is after them.

        `cut_start` is the first offset of a batch that the response has only the beginning of. `stable` is the last
        stable offset. Raises OffsetDamage.
        """
        batches, admitted = list(fetched), list[BatchOffsets]()
        looked_back, self._looking_back, self._log_start = self._looking_back, False, log_start
        preceding = self._pass_preceding(batches) if looked_back else []
        if looked_back and not self._ends_look_back(preceding, batches, cut_start):
            return []
        if self._held is not None:
            batches.insert(0, self._held)
            self._held = None
        for i, batch in enumerate(batches):
            following = batches[i + 1].start if i + 1 < len(batches) else cut_start
            agreed = following is None or following >= batch.end
            gap = batch.start > self.position
            contains = batch.start <= self.position < batch.end
            goes_on = _goes_on(batch)
            if batch.end > high_watermark:
                if self._beyond == (batch.start, batch.end):
                    raise OffsetDamage(f"at {self.position} the log, which ends at {high_watermark}, {goes_on}")
                self._beyond = batch.start, batch.end
                break
            if not (gap or contains) or (batch.start < self.position and not self._sought):
                self.doubt(f"the log {goes_on}", OffsetDamage)
                break
            first = i == 0 and not preceding  # nothing in view is before it
            if (gap or self._sought or first) and not agreed:
                self.doubt(f"the log {goes_on}, and then with one from {following} on", OffsetDamage)
                break
            at_end = batch.end in (high_watermark, stable)
            unseen = following is None or first
            # After a seek into a batch: if its offsets became lower a gap follows, and it overlaps with what precedes.
            gap_follows = batch.start < self.position and following != batch.end and not at_end
            if ((gap and unseen) or gap_follows) and self._doubted != self.position:
                self.doubt("offsets are missing", OffsetDamage)
                break
            if gap:
                if following is None and not at_end:
                    self._held = batch
                    break
                self.gaps.append((self.position, batch.start))
            self.position, self._anchor, self._anchored, self._sought = batch.end, batch.start, True, False
            admitted.append(batch)
        return admitted

    def _pass_preceding(self, batches: list[BatchOffsets]) -> list[BatchOffsets]:
        """Take the batches before `position` away, as far as they are in order."""
        preceding = list[BatchOffsets]()
        while batches and batches[0].end <= self.position and (not preceding or batches[0].start >= preceding[-1].end):
            preceding.append(batches.pop(0))
        return preceding

    def _ends_look_back(
        self, preceding: Sequence[BatchOffsets], batches: Sequence[BatchOffsets], cut_start: int | None
    ) -> bool:
        """Whether this response shows what precedes `position`; else the next fetch looks on. Raises OffsetDamage."""
        if preceding and batches and batches[0].start < preceding[-1].end:
            self.doubt(f"the log {_goes_on(batches[0])}", OffsetDamage)
        self._looking_back = True
        if not (self._anchored or len(preceding) > 1 or self._anchor <= self._log_start):
            # After a seek the batch before `position` may be damaged too, which the one before it shows.
            self._anchor -= self.position - self._anchor
            return False
        self._anchored = True
        if preceding:
            self._anchor = preceding[-1].start
            if not batches and cut_start is None and preceding[-1].end < self.position:
                self._anchor = preceding[-1].end  # in the next segment
                return False
        self._looking_back = not batches and cut_start is not None
        return not self._looking_back


def _goes_on(batch: OffsetRange) -> str:
    return f"goes on with a batch of offsets {batch.start} to {batch.end - 1}"
