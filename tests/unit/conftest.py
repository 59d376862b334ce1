"""Fixtures that unit tests share."""

from collections.abc import Iterator

import pytest

from service.learning.events.event_reader import use_compiled_reader


@pytest.fixture(scope="module", params=["compiled", pytest.param("careful", marks=pytest.mark.nightly)])
def reading(request: pytest.FixtureRequest) -> Iterator[None]:
    """The reader that reads a module's events; `make test-all` runs the module with each of them."""
    use_compiled_reader(request.param == "compiled")
    yield
    use_compiled_reader(False)


@pytest.fixture(scope="module")
def compiled_reader() -> Iterator[None]:
    """The compiled reader, for a module that tests it."""
    use_compiled_reader(True)
    yield
    use_compiled_reader(False)
