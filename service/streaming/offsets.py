"""Which offsets may follow on which in a log: a batch says its own, and no checksum covers what it says."""

from collections.abc import Callable
from typing import Literal

Wrong = Literal["", "unsure", "over", "beyond", "missing", "impossible"]
DOUBTFUL = ("unsure", "over", "beyond")
"""Of these the log itself can say whether the batch is in its place."""


class Offsets:
    """Those of one fetch from the offset `at`, of a log that ended before `end` when the broker began to answer.

    Batches of control records and of aborted transactions have their offsets like any other: but for compaction,
    nothing is missing between two batches, and nothing ever goes back.
    """

    def __init__(self, at: int, end: int, *, compacted: bool, sure: Callable[[int, int], bool]) -> None:
        """`sure` says whether a batch of these offsets is the one that the log has for the first of them."""
        self.at, self._end, self._compacted, self._sure, self._begun = at, end, compacted, sure, False

    def wrong(self, first: int, following: int, then: int | None) -> Wrong:
        """Go on behind a batch of the offsets `first` to before `following`, unless something is wrong with it.

        `then` is where the next batch of the fetch begins. Missing are offsets that compaction may have taken, in a
        topic that is not `compacted`. Unsure is a batch that begins before `at`, as where a fetch begins within it, and
        over the first of a fetch that reaches over what follows: one of the two is misplaced. Beyond the end is one
        with offsets missing before it that was written since, or is misplaced. Impossible is what has nothing new, or
        has offsets missing before it and reaches over what follows.
        """
        over, beyond = then is not None and then < following, self.at < first and self._end < following
        if following <= self.at or (over and first > self.at):
            return "impossible"
        if (first < self.at or beyond or (over and not self._begun)) and not self._sure(first, following):
            return "over" if over else "beyond" if beyond else "unsure"
        if first > self.at and not self._compacted:
            return "missing"
        self.at, self._begun = following, True
        return ""
