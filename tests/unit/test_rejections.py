"""When most records are rejected it is reported once, and when it is over."""

from service.monitoring.rejections import MIN_RECORDS, MostlyRejected, Rejections


def read(rejections: Rejections, rejected: int, accepted: int) -> MostlyRejected | bool:
    """A slice of this many records."""
    for i in range(rejected):
        rejections.add("not-json" if i % 3 else "missing-field")
    return rejections.add_records(rejected + accepted)


def test_it_is_reported_once_and_when_it_is_over() -> None:
    rejections = Rejections()
    assert read(rejections, MIN_RECORDS - 1, 0) is False
    assert read(rejections, 51, 49) == MostlyRejected(MIN_RECORDS + 50, MIN_RECORDS + 99, "not-json")
    assert not any(read(rejections, 100, 0) for _ in range(100))
    over = [read(rejections, 0, 100) for _ in range(30)]
    assert over.count(True) == 1
    assert set(over) == {True, False}
    assert any(isinstance(read(rejections, 100, 0), MostlyRejected) for _ in range(12))


def test_a_few_among_many_are_not_reported() -> None:
    rejections = Rejections()
    assert not any(read(rejections, 45, 55) for _ in range(100))
