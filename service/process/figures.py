"""The models' figures at the moment of a scrape, and their lag, which the page shows too."""

from collections.abc import Iterator

from service.monitoring.metrics import ModelFigures
from service.serving.model_info import Description
from service.serving.models import Model, Models
from service.streaming.kafka.membership.group import Kafka


def model_metrics(models: Models, kafka: Kafka) -> Iterator[ModelFigures]:
    """The figures of each model that answers."""
    for model in models:
        if a := model.answering:
            saved = {int(p): position.offset for p, position in a.head.next.items()}
            unsaved = sum(offset - saved.get(p, offset) for p, offset in a.learner.next.items())
            yield ModelFigures(
                Description.of(model, a), a.head.counts, a.head.saved_at, lag(model, kafka) or {}, unsaved
            )


def lag(model: Model, kafka: Kafka) -> dict[int, int] | None:
    """Records that are still to be learned, by partition; None if another process learns the model."""
    if model.answering is None or not model.learning_here:
        return None
    return kafka.logs[model.name].lag(model.answering.learner.next)
