"""`perceptron export`: a model's newest snapshot as JSON, as a fitted scikit-learn pipeline, as ONNX.

All three answer as the service does, except at s = 0 if `tie` is positive. With two classes, s = coef · x + intercept,
and s > 0 means the second class. With three or more, coef has a row for each, and the first with the largest s wins.
JSON and ONNX take columns. scikit-learn's pipeline takes what the model takes: flat events by name, or rows.
"""

import zipfile
from typing import Any

import msgspec
import numpy as np
import typer

from service.errors import ConfigurationError, DataError
from service.learning import weights_file
from service.learning.identity import listed
from service.serving.model_info import Version
from service.serving.models import ServedModel
from service.settings.load import Settings
from service.tools.files import write_atomically
from service.tools.stored.inspect import newest_snapshot


async def export_model(settings: Settings, name: str, json: str | None, sklearn: str | None, onnx: str | None) -> None:
    """Write the model to these files, each whole or not at all; the JSON to standard output if none is named."""
    async with settings.redis.store() as store:
        newest = await newest_snapshot(store, name, settings.model_settings(name).options())
    if json is None and sklearn is None and onnx is None:
        typer.echo(_json(name, newest), nl=False)
    # The JSON first: every model has one, and it is there if another form cannot be made.
    for form, file, content_of in (("json", json, _json), ("sklearn", sklearn, _skops), ("onnx", onnx, _onnx)):
        if file is None:
            continue
        try:
            write_atomically(file, content_of(name, newest))
        except ImportError:
            raise ConfigurationError(f"--{form} needs packages: pip install 'perceptron-service[{form}]'") from None
        typer.echo(f"version {newest.head.version} of {name} written to {file}", err=True)


def _json(name: str, served: ServedModel) -> bytes:
    return msgspec.json.encode(export_json(name, served)) + b"\n"


def export_json(name: str, served: ServedModel) -> dict[str, Any]:
    """The content of the JSON file, by member."""
    saved = Version.from_head(served.digest, served.head)
    learner, classifier = served.learner, served.learner.serving
    counts = ("events", "mistakes", "wrong_predictions", "updates", "confusion", "rejected", "skipped")
    return weights_file.weights_as_json(
        classifier.identity,
        learner.columns.names,
        classifier.served,
        {part: getattr(classifier.counts, part) for part in (*counts, "ignored_features")},
        {"model": name, "version": saved.version, "saved_at": saved.saved_at, "state_digest": served.head.state_digest},
        learner.scaler.arrays(len(learner.columns)) if learner.scaler else {},
    )


def _fitted(name: str, served: ServedModel) -> Any:
    """A scikit-learn Perceptron with the weights that answer; its `partial_fit` knows only the plain perceptron rule.

    With three classes and more it learns each class against the rest. Raises DataError if scikit-learn and ONNX have
    no such model.
    """
    learner, classifier = served.learner, served.learner.serving
    labels, weights = list(learner.identity.labels or (-1, 1)), classifier.served
    if len(weights) == 1:
        raise DataError(f"model {name} knows no feature yet, and scikit-learn takes no model without features")
    if learner.scaler and learner.identity.features != "positional":
        why = "the columns that scikit-learn and ONNX take have 0 for a feature that is absent"
        cure = "the JSON (-o FILE) has weights, count, mean and m2 of each column"
        number = "and scaling has to tell it from the number 0"
        raise DataError(f'model {name} has scale = "standard": {why}, {number}; {cure}')
    if learner.identity.clip:
        raise DataError(f"model {name} clips, which scikit-learn and ONNX cannot; the JSON (-o FILE) has what it takes")
    from sklearn.linear_model import Perceptron

    fitted = Perceptron(eta0=classifier.identity.eta, shuffle=False)
    rows = np.atleast_2d(weights.T)
    intercept, coef = rows[:, 0].copy(), rows[:, 1:].copy()
    if learner.scaler:
        # w·(x - mean)/σ is (w/σ)·x less w·mean/σ, since positional features are never absent.
        n, mean, m2 = (array[1:] for array in learner.scaler.arrays(len(learner.columns)).values())
        deviation = np.sqrt(m2 / np.maximum(n, 1.0))
        coef = np.divide(coef, deviation, out=np.zeros_like(coef), where=deviation > 0.0)
        intercept -= coef @ mean
    intercept -= classifier.observations.options.positive_above or 0.0  # an answer is positive if s > 0 there
    fitted.coef_, fitted.intercept_ = coef, intercept
    # np.array alone would convert labels of two types to one type.
    fitted.classes_ = np.array(labels, None if len(set(map(type, labels))) == 1 else object)
    fitted.n_features_in_ = fitted.coef_.shape[1]
    fitted.n_iter_, fitted.t_ = 1, 1.0 + classifier.counts.events
    return fitted


def _skops(name: str, served: ServedModel) -> bytes:
    """A pipeline from flat events to labels; with positional features, the classifier alone."""
    steps = [_fitted(name, served)]
    from sklearn.feature_extraction import DictVectorizer, FeatureHasher
    from sklearn.pipeline import make_pipeline
    from skops.io import dumps

    if served.learner.identity.features == "hashed":
        steps.insert(0, FeatureHasher(steps[0].n_features_in_))
    elif served.learner.identity.features == "named":
        vectorizer = DictVectorizer(sort=False)
        vectorizer.feature_names_ = [*served.learner.columns.names]
        vectorizer.vocabulary_ = {feature: column for column, feature in enumerate(vectorizer.feature_names_)}
        steps.insert(0, vectorizer)
    # Each name is written twice, with much around it.
    return bytes(dumps(make_pipeline(*steps) if steps[1:] else steps[0], compression=zipfile.ZIP_DEFLATED))


def _onnx(name: str, served: ServedModel) -> bytes:
    """Input `features`, float64 rows; outputs `label`, and `scores`: -s and s of two classes, else one for each."""
    fitted = _fitted(name, served)
    labels = fitted.classes_.tolist()
    if not (all(isinstance(x, int) for x in labels) or all(isinstance(x, str) for x in labels)):
        raise DataError(f"model {name}: ONNX takes labels that are all integers or all strings, not {listed(labels)}")
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import DoubleTensorType

    model = convert_sklearn(
        fitted,
        name=name,
        # Doubles: with its default, single precision, labels near s = 0 would differ.
        initial_types=[("features", DoubleTensorType([None, fitted.n_features_in_]))],
        final_types=[("label", None), ("scores", None)],
        options={"zipmap": False, "raw_scores": True},
    )
    about = export_json(name, served)
    for part in ("version", "state_digest", "features", "names"):
        text = about[part] if isinstance(about[part], str) else msgspec.json.encode(about[part]).decode()
        model.metadata_props.add(key=part, value=text)
    return bytes(model.SerializeToString())
