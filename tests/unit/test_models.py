"""What a look at the store says of a model."""

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.serving.models import given
from tests.checks import restored
from tests.conftest import event


def test_who_learns_a_model_is_woken_by_another_head_than_its_own() -> None:
    """Or all that learn would be, once a second, each by its own last save, and go on in one turn of the loop."""
    saved = Learner(Identity())
    saved.begin({0: 0})
    model, learner = given("m", saved, 0.0), restored(saved)
    assert model.answering is not None
    model.answering, model.learning_here = model.answering._replace(learner=learner), True
    own = model.answering.digest
    for records in (0, 1):
        learner.apply(0, Records.of(0, [event({"a": 1}, 1)] * records))
        assert (model.answering.ahead, model.found(own)) == (records, False)
    assert model.found("another's")
    assert model.found("")  # it was reset
    model.learning_here = False  # it is to follow, and what answers is ahead of what is stored
    assert model.found(own)
