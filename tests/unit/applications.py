"""One model as the service serves and describes it, without Kafka and Redis."""

from typing import cast

from service.learning.learner import Learner
from service.monitoring.metrics import Metrics
from service.serving.http.app import Application, create_app
from service.serving.http.limits import Limits
from service.serving.models import Models, given
from service.serving.report import Description
from service.snapshots.store import RedisStore


def application(learner: Learner, name: str = "m", metrics: Metrics | None = None) -> Application:
    """An application over one model, which does not learn."""
    models, store = Models([given(name, learner, 0.0)]), cast(RedisStore, None)
    metrics = metrics or Metrics("0", list, lambda: True, dict)
    return create_app(models, metrics, lambda: True, lambda: False, store, Limits(), version="0")


def described(learner: Learner) -> Description:
    """What the service reports of a model that it learns."""
    model = given("m", learner, 0.0)
    model.learning_here = True
    assert model.answering is not None
    return Description.of(model, model.answering)
