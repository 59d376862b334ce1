"""One model as the service serves, describes and counts it, without Kafka and Redis."""

from collections.abc import Callable
from typing import Any

from aiokafka import TopicPartition

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.monitoring.metrics import Metrics, ModelFigures
from service.serving.http.app import Application
from service.serving.model_info import Description
from service.serving.models import Model, Models, static_model
from service.serving.page.page import History
from service.serving.posting import Posting
from service.settings.connections import HttpSettings
from tests.checks import learner_of


def serving(
    *models: Model,
    metrics: Metrics | None = None,
    http: HttpSettings = HttpSettings(),  # noqa: B008 - it does not change
    store: Any = None,
    ready: bool = True,
    stopping: Callable[[], bool] = lambda: False,
    history: History | None = None,
    posting_of: Callable[[str], Posting | None] = lambda _: None,
) -> Application:
    """The application over these models."""
    metrics, served = metrics or Metrics("0", list, lambda: ready, dict), Models(models)
    history = history or History(served, lambda _: None)
    return Application(served, metrics, store, history, stopping, http, "0", posting_of=posting_of)


def application(learner: Learner, name: str = "m", **arguments: Any) -> Application:
    """An application over one model, which does not learn."""
    return serving(static_model(name, learner, 0.0), **arguments)


def describe(learner: Learner, name: str = "m") -> Description:
    """The description that the service gives of a model that it learns."""
    model = static_model(name, learner, 1.0)
    model.learning_here = True
    assert model.answering is not None
    return Description.from_model(model, model.answering)


def figures(name: str) -> ModelFigures:
    """The figures of a model that has learned a little and has every figure."""
    event = b'{"features":{"a":1},"label":1}'
    learner = learner_of(Identity(), [event, b"{"])
    learner.main.begin_segment()
    learner.apply(Records.from_values(2, [event]))
    return ModelFigures(describe(learner, name), learner.main.counts, 1.0, {TopicPartition(name, 0): 1}, {}, 3)
