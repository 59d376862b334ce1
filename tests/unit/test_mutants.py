"""The checks of the live bound notice the faults that they are there for; `make bounds` prints which notices what."""

import pytest

from tests.mutants import MUTANTS, Mutant, failed

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_fault_is_noticed(mutant: Mutant) -> None:
    assert mutant.caught_by in failed(mutant, mutant.caught_by)


def test_nothing_is_noticed_where_there_is_no_fault() -> None:
    assert failed(None) == []
