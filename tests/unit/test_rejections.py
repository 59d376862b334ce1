"""When most records are rejected it is said once, again each hour, and when it is over."""

from service.monitoring.rejections import AGAIN_SECONDS, MIN_REJECTED, MostlyRejected, Rejections


def read(rejections: Rejections, rejected: int, accepted: int, now: float = 0.0) -> MostlyRejected | bool:
    """A slice of so many records."""
    for i in range(rejected):
        rejections.add("not-json" if i % 3 else "missing-field")
    return rejections.add_records(rejected + accepted, now)


def test_it_is_said_once_again_each_hour_and_when_it_is_over() -> None:
    rejections = Rejections()
    assert read(rejections, MIN_REJECTED - 1, 0) is False
    assert read(rejections, 51, 49) == MostlyRejected(MIN_REJECTED + 50, MIN_REJECTED + 99, "not-json")
    assert not any(read(rejections, 100, 0, now=10.0 * i) for i in range(100))
    assert read(rejections, 0, 60, AGAIN_SECONDS - 1) is False
    said = read(rejections, 100, 0, AGAIN_SECONDS)
    assert isinstance(said, MostlyRejected)
    assert said.rejected > 0.8 * said.records
    over = [read(rejections, 0, 100, AGAIN_SECONDS) for _ in range(30)]
    assert over.count(True) == 1
    assert set(over) == {True, False}
    assert isinstance([read(rejections, 100, 0, AGAIN_SECONDS + 1) for _ in range(12)][-1], bool)


def test_a_few_among_many_are_not_said() -> None:
    rejections = Rejections()
    assert not any(read(rejections, 45, 55, now=1e6 * i) for i in range(100))
