"""`perceptron inspect --bound`: the covered log replayed, for the best bound on its updates in hindsight."""

from typing import Any

import numpy as np

from service.errors import ConfigurationError, DataError
from service.learning import passes
from service.learning.bounds import direction, hindsight, why_none
from service.learning.events.batch import Batch, Decoder
from service.learning.kernel import Vector
from service.learning.learner import Learner
from service.learning.scale import Scaler
from service.learning.separable import separate
from service.learning.start import initial, rows
from service.settings.model import ModelSettings
from service.streaming.kafka.cluster import Cluster


async def best_bound(cluster: Cluster, topic: str, own: ModelSettings, learner: Learner) -> dict[str, Any]:
    """The least bound over some references, with its γ and what the reference is.

    Raises DataError where the log does not hold the events any more, and DependencyError.
    """
    if reason := why_none(learner.identity, True):
        raise DataError(reason)
    values = [
        value
        async for partition, records in cluster.read_whole(topic, ConfigurationError(f"topic {topic} does not exist"))
        for start, end in learner.covered.get(partition, ())
        for value in records[records.find(start) : records.find(end)].values
    ]
    batch, _ = Decoder(learner.identity, learner.columns).decode(values)
    if len(batch.labels) != learner.counts.events:
        raise DataError(
            f"topic {topic} holds {len(batch.labels):,} of the {learner.counts.events:,} events that were learned"
        )
    if learner.scaler:
        if len(learner.covered) > 1:
            raise DataError("scaled values depend on the order of arrival, which is not known of several partitions")
        batch = Scaler(learner.identity, len(learner.columns)).learn(batch)
    begun = _begun(own, learner)
    found = []
    for name, u in _references(learner, batch).items():
        scale = direction(u)
        if scale > 0.0:
            margins, squared_norms = passes.margins(batch, u)
            along = scale * passes.lengths_of(learner.identity, batch) * margins
            radius = float(passes.squares_of(learner.identity, batch, squared_norms).max())
            began, begun_along = float(begun.ravel() @ begun.ravel()), scale * float(u.ravel() @ begun.ravel())
            best = hindsight(along, radius, began, begun_along, learner.watch.squared_steps - began)
            found.append({"updates": best.updates, "gamma": best.gamma, "reference": name})
    if not found:
        raise DataError("no event was learned, so there is no reference")
    return min(found, key=lambda row: row["updates"])


def _references(learner: Learner, batch: Batch) -> dict[str, Vector]:
    found = {"the final weights": learner.weights}
    if learner.average is not None:
        found["the average"] = learner.average
    try:
        evidence = separate(batch, learner.weights.shape, learner.identity.classes)
    except ImportError:
        return found
    if evidence.vector is not None:
        found["the linear program's separating vector"] = evidence.vector
    return found


def _begun(own: ModelSettings, learner: Learner) -> Vector:
    """w(0): what the identity begins with, in the learner's columns."""
    given = own.start_weights()
    columns = len(learner.columns)
    if learner.identity.multiclass:
        return rows(learner.identity.start, 0, columns, learner.identity.classes)
    if given is None:
        return initial(learner.identity.start, 0, columns)
    if given.identity != learner.identity.start:
        raise DataError("the settings' start is not the one that the model was learned from")
    return np.concatenate([given.vector, np.zeros(columns - len(given.vector))])
