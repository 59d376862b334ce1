"""The models' figures at the moment of a scrape."""

from collections.abc import Iterator

from service.monitoring.metrics import Figures
from service.serving.models import Models
from service.serving.report import Description
from service.streaming.group import Kafka


def figures(models: Models, kafka: Kafka) -> Iterator[Figures]:
    """Those of each model that answers."""
    for model in models:
        if a := model.answering:
            lag = kafka.logs[model.name].lag(a.learner.next) if model.learning_here else {}
            saved = {int(p): position.offset for p, position in a.head.next.items()}
            unsaved = sum(offset - saved.get(p, offset) for p, offset in a.learner.next.items())
            yield Figures(Description.of(model, a), a.head.counts, a.head.saved_at, lag, unsaved)
