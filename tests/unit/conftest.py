"""What unit tests share."""

from collections.abc import Iterator

import pytest

from service.learning.events.batch import use_compiled_reader


@pytest.fixture(scope="module", params=["typed", "compiled"])
def reading(request: pytest.FixtureRequest) -> Iterator[None]:
    """Events are read by the one reader and by the other: a module of exactness asks for it, and runs both ways."""
    use_compiled_reader(request.param == "compiled")
    yield
    use_compiled_reader(False)
