"""What unit tests share."""

from collections.abc import Iterator

import pytest

from service.learning.events import read_by


@pytest.fixture(scope="module", params=["typed", "compiled"])
def reading(request: pytest.FixtureRequest) -> Iterator[None]:
    """Events are read by the one reader and by the other: a module of exactness asks for it, and runs both ways."""
    read_by(compiled=request.param == "compiled")
    yield
    read_by(compiled=False)
