"""The figures of a model that has learned a little, for those who look at metrics alone."""

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.monitoring.metrics import Figures
from service.serving.models import given
from service.serving.report import Description


def learned(name: str) -> Figures:
    """As its learner has them, where no figure is absent."""
    learner = Learner(Identity())
    learner.begin({0: 0})
    event = b'{"features":{"a":1},"label":1}'
    learner.apply(0, Records.of(0, [event, b"{"]))
    learner.begin_stretch()
    learner.apply(0, Records.of(2, [event]))
    model = given(name, learner, 1.0)
    model.learning_here = True
    assert model.answering is not None
    return Figures(Description.of(model, model.answering), learner.counts, 1.0, {0: 1}, 3)
