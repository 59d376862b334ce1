"""A high share of rejected records is reported once, and when it ends."""

from service.monitoring.rejections import MIN_RECORDS, Rejections


def add_slice(rejections: Rejections, rejected: int, accepted: int) -> bool | None:
    """Add a slice with this many records; returns whether most are rejected if that has changed."""
    for i in range(rejected):
        rejections.add("not-json" if i % 3 else "missing-field")
    return rejections.are_most if rejections.add_records(rejected + accepted) else None


def test_a_high_share_of_rejections_is_reported_once_and_when_it_ends() -> None:
    rejections = Rejections()
    assert add_slice(rejections, MIN_RECORDS - 1, 0) is None
    assert add_slice(rejections, 51, 49) is True
    assert rejections.records == MIN_RECORDS + 99
    assert rejections.reasons == {"not-json": 6 + 34, "missing-field": 3 + 17}
    assert {add_slice(rejections, 100, 0) for _ in range(100)} == {None}
    reports = [add_slice(rejections, 0, 100) for _ in range(30)]
    assert (reports.count(False), reports.count(None)) == (1, 29)
    assert True in [add_slice(rejections, 100, 0) for _ in range(12)]


def test_a_low_share_of_rejections_is_not_reported() -> None:
    rejections = Rejections()
    assert {add_slice(rejections, 45, 55) for _ in range(100)} == {None}
