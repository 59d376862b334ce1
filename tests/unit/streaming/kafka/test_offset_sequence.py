"""A batch is admitted in its place or not at all, whatever gaps compaction left and however responses are cut."""

from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.errors import LogGap
from service.streaming.kafka.fetching.offset_sequence import OffsetSequence


class Batch(NamedTuple):
    start: int
    end: int


class Broker:
    """A log with one segment of batches.

    Like Kafka since 4.1 it searches by first offsets. It returns the batch that starts at an offset. If there is none,
    it takes the first batch that starts after it, or the batch before that one if it contains the offset.
    """

    def __init__(self, batches: list[Batch], end: int) -> None:
        self.batches, self.end = batches, end

    def response(self, offset: int, count: int) -> tuple[list[Batch], int | None]:
        """`count` batches from the offset on, and the offset at which the next batch begins."""
        index = next((i for i, batch in enumerate(self.batches) if batch.start >= offset), len(self.batches))
        start = self.batches[index].start if index < len(self.batches) else None
        index -= start != offset and index > 0 and self.batches[index - 1].end > offset
        batches, following = self.batches[index : index + count], self.batches[index + count : index + count + 1]
        return batches, following[0].start if following else None


def read(broker: Broker, start: int, counts: list[int]) -> list[Batch]:
    """All batches that are admitted from `start` on; raises LogGap."""
    sequence: OffsetSequence[Batch] = OffsetSequence(start)
    admitted = list[Batch]()
    for i in range(100):
        batches, next_start = broker.response(sequence.fetch_offset, counts[i % len(counts)])
        admitted += sequence.admit(batches, next_start, broker.end, broker.end, 0)
        if sequence.position >= broker.end:
            break
    return admitted


@st.composite
def logs(draw: st.DrawFn, gaps: bool = True) -> Broker:
    """A log of batches of a few records, with or without gaps between them."""
    batches, offset = list[Batch](), 0
    for size, gap in draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=8)):
        offset += gap if gaps else 0
        batches.append(Batch(offset, offset + size))
        offset += size
    return Broker(batches, offset)


@given(logs(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_batch_is_admitted_once_whatever_is_missing_between_them(broker: Broker, counts: list[int]) -> None:
    counts = [max(2, count) for count in counts]  # the previous batch, and a new one
    assert read(broker, 0, counts) == broker.batches


@given(logs(gaps=False), st.data())
def test_a_flipped_base_offset_is_damage_and_nothing_after_it_is_admitted(broker: Broker, data: st.DataObject) -> None:
    """The flipped offset is higher or lower, and the response shows the batches before and after it."""
    assume(len(broker.batches) >= 3)
    place = data.draw(st.integers(1, len(broker.batches) - 2))
    batch = broker.batches[place]
    start = batch.start ^ 1 << data.draw(st.integers(0, 7))
    broker.batches[place] = Batch(start, start + batch.end - batch.start)
    sequence: OffsetSequence[Batch] = OffsetSequence(0)
    admitted = list[Batch]()
    count = data.draw(st.integers(3, 5))
    with pytest.raises(LogGap, match="goes on with"):  # noqa: PT012 - whatever is admitted before
        for _ in range(20):
            batches, next_start = broker.response(sequence.fetch_offset, count)
            admitted += sequence.admit(batches, next_start, broker.end, broker.end, 0)
    assert len(admitted) <= place
    assert admitted == broker.batches[: len(admitted)]


def _lowered(place: int, damaged: Batch, following: int, size: int = 1) -> list[Batch]:
    """Batches of one size. The one before the batches from `following` on has offsets that became lower."""
    first_batches = [Batch(start, start + size) for start in range(0, place, size)]
    return [*first_batches, damaged, *(Batch(start, start + size) for start in range(following, 45 * size, size))]


@pytest.mark.parametrize(
    ("batches", "start", "counts", "message"),
    [
        # The broker skips it, also for offsets shortly before it: the sequence looks back further.
        (_lowered(20, Batch(4, 14), 30, 10), 20, [5], "at 20 the log goes on with a batch of offsets 4 to 13"),
        # It seems to end at the offset of the seek; its last record would be a gap.
        (_lowered(5, Batch(4, 9), 10), 9, [3], "at 9 the log goes on with a batch of offsets 4 to 8"),
        # It contains the offset of the seek, and a gap follows.
        (_lowered(6, Batch(4, 8), 10), 6, [3], "at 6 the log goes on with a batch of offsets 4 to 7"),
    ],
)
def test_a_batch_whose_offsets_became_lower_is_found_by_a_seek(
    batches: list[Batch], start: int, counts: list[int], message: str
) -> None:
    with pytest.raises(LogGap, match=message):
        read(Broker(batches, batches[-1].end), start, counts)


@given(logs(), st.integers(0, 40))
def test_a_seek_beyond_a_gap_looks_back_and_goes_on(broker: Broker, start: int) -> None:
    assume(start < broker.end)
    assert read(broker, start, [1, 2, 3]) == [batch for batch in broker.batches if batch.end > start]


def test_a_batch_that_stays_beyond_the_high_watermark_is_damage() -> None:
    sequence: OffsetSequence[Batch] = OffsetSequence(0)
    assert sequence.admit([Batch(256, 261)], None, 5, 5, 0) == []
    with pytest.raises(LogGap):
        sequence.admit([Batch(256, 261)], None, 5, 5, 0)


def test_a_batch_in_its_place_that_the_next_one_contradicts_is_looked_at_again_before_it_is_learned() -> None:
    """One of the two batches is misplaced; only an earlier batch could show which."""
    broker = Broker([Batch(0, 5), Batch(5, 10), Batch(8, 12)], 12)
    sequence: OffsetSequence[Batch] = OffsetSequence(0)
    assert sequence.admit(*broker.response(0, 1), broker.end, broker.end, 0) == [Batch(0, 5)]
    assert sequence.admit(*broker.response(5, 2), broker.end, broker.end, 0) == []
    assert sequence.fetch_offset == 0
