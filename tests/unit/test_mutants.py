"""The checks of the live bound notice the faults that they are there for; `make bounds` prints which notices what."""

import pytest

from tests.mutants import FURTHER, MUTANTS, Mutant, tried
from tests.stretches import THEOREM


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_fault_is_noticed(mutant: Mutant) -> None:
    assert mutant.caught_by in tried(mutant, mutant.caught_by)["failed"]


@pytest.mark.nightly
def test_no_fault_is_noticed_where_there_is_none_and_a_larger_gamma_buys_nothing() -> None:
    """With Ξ over all events a larger γ only counts events; over the updates alone it would give k itself."""
    sound, further = tried(None), tried(FURTHER)
    assert sound["failed"] == []
    for check in THEOREM:
        for ours, theirs in zip(sound["bounds"][check.__name__], further["bounds"][check.__name__], strict=True):
            assert ours <= theirs
    # Of 200 events: there it says next to nothing.
    assert sound["bounds"]["separable_and_noisy"][0] < 150
    assert further["bounds"]["separable_and_noisy"][0] > 180
