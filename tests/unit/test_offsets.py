"""Which batches may follow on which."""

import pytest

from service.streaming.offsets import Offsets, Wrong


@pytest.mark.parametrize(
    ("first", "following", "then", "in_any", "compacted"),
    [
        (20, 30, 30, "", ""),
        (20, 30, None, "", ""),
        (20, 50, None, "", ""),
        (20, 30, 4, "over", "over"),  # one of the two is wrong
        (22, 30, 30, "missing", ""),
        (22, 30, 40, "missing", ""),
        (22, 32, 30, "impossible", "impossible"),
        (45, 55, None, "beyond", "beyond"),
        (276, 286, None, "beyond", "beyond"),
        (4, 14, 30, "impossible", "impossible"),
        (10, 20, 30, "impossible", "impossible"),
        (-(2**63), 10 - 2**63, 30, "impossible", "impossible"),
        (16, 26, 30, "unsure", "unsure"),
        (17, 27, 30, "", ""),
        (20, 55, None, "", ""),
        (45, 52, None, "missing", ""),
        (17, 27, 26, "", ""),
        (16, 26, 25, "over", "over"),
    ],
)
def test_what_may_follow_on_19_in_a_log_that_ends_at_50(
    first: int, following: int, then: int | None, in_any: Wrong, compacted: Wrong
) -> None:
    for compaction, expected in ((False, in_any), (True, compacted)):
        offsets = Offsets(20, 50, compacted=compaction, sure=lambda *batch: batch in {(17, 27), (45, 52)})
        assert offsets.wrong(first, following, then) == expected
        assert offsets.at == (20 if expected else following)


def test_nothing_goes_back_over_several() -> None:
    offsets = Offsets(0, 50, compacted=True, sure=lambda *_: False)
    assert [offsets.wrong(*batch, None) for batch in ((0, 10), (10, 12), (20, 30), (12, 20), (30, 31))] == [
        "", "", "", "impossible", "",
    ]  # fmt: skip
