"""A high share of rejected records is reported once, and when it ends."""

from service.monitoring.rejections import MIN_RECORDS, MostlyRejected, Rejections


def add_slice(rejections: Rejections, rejected: int, accepted: int) -> MostlyRejected | bool:
    """Add a slice with this many records."""
    for i in range(rejected):
        rejections.add("not-json" if i % 3 else "missing-field")
    return rejections.add_records(rejected + accepted)


def test_a_high_share_of_rejections_is_reported_once_and_when_it_ends() -> None:
    rejections = Rejections()
    assert add_slice(rejections, MIN_RECORDS - 1, 0) is False
    assert add_slice(rejections, 51, 49) == MostlyRejected(MIN_RECORDS + 50, MIN_RECORDS + 99, "not-json")
    assert not any(add_slice(rejections, 100, 0) for _ in range(100))
    reports = [add_slice(rejections, 0, 100) for _ in range(30)]
    assert reports.count(True) == 1
    assert set(reports) == {True, False}
    assert any(isinstance(add_slice(rejections, 100, 0), MostlyRejected) for _ in range(12))


def test_a_low_share_of_rejections_is_not_reported() -> None:
    rejections = Rejections()
    assert not any(add_slice(rejections, 45, 55) for _ in range(100))
