"""`perceptron export`: a model's newest snapshot as JSON, as a fitted scikit-learn pipeline, as ONNX.

All three answer as the service does. With two classes, s = coef · x + intercept, and s > 0 means the second class, as
does s = 0 if `tie` is positive. With three or more, coef has a row for each, and the first with the largest s wins.
JSON and ONNX take columns. scikit-learn's pipeline takes flat events by name, or rows. If the model scales named
features, it takes columns too, with NaN for an absent feature: a DictVectorizer cannot tell absent from 0.
"""

import zipfile
from typing import Any, NamedTuple

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from service.errors import ConfigurationError, DataError
from service.learning import weights_file
from service.learning.identity import listed
from service.learning.kernel.kernel import Vector
from service.learning.kernel.scaling import MIN_CLIPPED
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


class _LinearModel(NamedTuple):
    """The weights that answer: the scores of a row of columns are coef · x + intercept."""

    labels: NDArray[Any]
    coef: Vector
    """A row for the second of two labels, or one for each of three and more."""
    intercept: Vector
    tie_is_positive: bool
    """Whether a score of 0 means the second of two labels."""
    scaling: tuple[Vector, Vector, Vector] | None
    """Means, deviations and limits: x is (value - mean) / deviation, within ±limit, and 0 for NaN."""


def _linear_model(name: str, served: ServedModel) -> _LinearModel:
    """The model as arrays; raises DataError if scikit-learn and ONNX have no such model."""
    learner, classifier, scaling = served.learner, served.learner.serving, None
    labels, weights = list(learner.identity.labels or (-1, 1)), classifier.served
    if len(weights) == 1:
        raise DataError(f"model {name} knows no feature yet, and scikit-learn and ONNX have no model without features")
    if learner.scaler and learner.identity.features == "hashed":
        why = "a column does not tell which of its names are absent, and they are not scaled"
        cure = "the JSON (-o FILE) has weights, count, mean and m2 of each column"
        raise DataError(f'model {name} has hashed features and scale = "standard": {why}; {cure}')
    if learner.scaler:
        n, mean, m2, *_ = (array[1:] for array in learner.scaler.arrays(len(weights)).values())
        deviation = np.sqrt(m2 / np.maximum(n, 1.0))
        deviation[deviation == 0.0] = np.inf  # a number is 0 if its column has no variance
        deviation[n == 0.0] = 1.0  # booleans and categories are not scaled
        scaling = mean, deviation, np.where(n < MIN_CLIPPED, np.inf, learner.identity.clip or np.inf)
    rows, above = np.atleast_2d(weights.T), classifier.observations.options.positive_above
    # np.array alone would convert labels of two types to one type.
    classes = np.array(labels, None if len({*map(type, labels)}) == 1 else object)
    tie_is_positive = len(rows) == 1 and above is None and classifier.identity.tie == "positive"
    return _LinearModel(classes, rows[:, 1:], rows[:, 0] - (above or 0.0), tie_is_positive, scaling)


def _skops(name: str, served: ServedModel) -> bytes:
    """A Perceptron with the weights that answer, after the steps that make its input, if it needs any.

    Its `partial_fit` knows only the plain perceptron rule, and learns each of three classes against the rest.
    """
    model, learner = _linear_model(name, served), served.learner
    from sklearn.feature_extraction import DictVectorizer, FeatureHasher
    from sklearn.linear_model import Perceptron
    from sklearn.model_selection import FixedThresholdClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler
    from skops.io import dumps

    fitted = Perceptron(eta0=learner.serving.identity.eta, shuffle=False)
    fitted.coef_, fitted.intercept_, fitted.classes_ = model.coef, model.intercept, model.labels
    fitted.n_features_in_ = model.coef.shape[1]
    fitted.n_iter_, fitted.t_ = 1, 1.0 + learner.serving.counts.events
    steps: list[Any] = [fitted]
    if model.tie_is_positive:  # a Perceptron answers 0 with the first label, a threshold with the second
        steps = [FixedThresholdClassifier(fitted, threshold=0.0, response_method="decision_function")]
        steps[0].estimator_ = fitted
    named = learner.identity.features == "named"
    if model.scaling:
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, limit = model.scaling
        scaler.n_features_in_ = fitted.n_features_in_
        if named:
            scaler.feature_names_in_ = np.array(learner.columns.names, object)
            steps.insert(0, FunctionTransformer(np.nan_to_num))
        if learner.identity.clip:
            steps.insert(0, FunctionTransformer(np.clip, kw_args={"a_min": -limit, "a_max": limit}))
        steps.insert(0, scaler)
    elif named:
        vectorizer = DictVectorizer(sort=False)
        vectorizer.feature_names_ = [*learner.columns.names]
        vectorizer.vocabulary_ = {feature: column for column, feature in enumerate(vectorizer.feature_names_)}
        steps.insert(0, vectorizer)
    elif learner.identity.features == "hashed":
        steps.insert(0, FeatureHasher(fitted.n_features_in_))
    # Each name is written twice, with much around it.
    return bytes(dumps(make_pipeline(*steps) if steps[1:] else steps[0], compression=zipfile.ZIP_DEFLATED))


def _onnx(name: str, served: ServedModel) -> bytes:
    """Input `features`, float64 rows; outputs `label`, and `scores`: -s and s of two classes, else one for each."""
    model, columns, nodes = _linear_model(name, served), "features", list[Any]()
    if model.labels.dtype == object:
        raise DataError(f"model {name}: ONNX takes labels of one type, not {listed(model.labels.tolist())}")
    from onnx import TensorProto, helper, numpy_helper

    node, value = helper.make_node, helper.make_tensor_value_info
    two = len(model.coef) == 1
    coef, intercept = (np.concatenate([-a, a]) if two else a for a in (model.coef, model.intercept))
    constants = {"coef": coef, "intercept": intercept, "labels": model.labels}
    if model.scaling:
        mean, deviation, limit = model.scaling
        constants |= {"mean": mean, "deviation": deviation, "lowest": -limit, "highest": limit}
        columns = "clipped"
        nodes = [
            node("IsNaN", ["features"], ["absent"]),
            node("Where", ["absent", "mean", "features"], ["present"]),  # the mean becomes 0
            node("Sub", ["present", "mean"], ["distance"]),
            node("Div", ["distance", "deviation"], ["scaled"]),
            node("Max", ["scaled", "lowest"], ["raised"]),
            node("Min", ["raised", "highest"], ["clipped"]),
        ]
    nodes += [
        node("Gemm", [columns, "coef", "intercept"], ["scores"], transB=1),
        node("ArgMax", ["scores"], ["index"], axis=1, keepdims=0, select_last_index=int(model.tie_is_positive)),
        node("Gather", ["labels", "index"], ["label"]),
    ]
    tensors = [numpy_helper.from_array(array, constant) for constant, array in constants.items()]
    inputs = [value("features", TensorProto.DOUBLE, [None, coef.shape[1]])]
    outputs = [value("label", tensors[2].data_type, [None]), value("scores", TensorProto.DOUBLE, [None, len(coef)])]
    graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
    # Versions of 2020, so that older runtimes read it too.
    exported = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    about = export_json(name, served)
    for part in ("version", "state_digest", "features", "names"):
        text = about[part] if isinstance(about[part], str) else msgspec.json.encode(about[part]).decode()
        exported.metadata_props.add(key=part, value=text)
    return bytes(exported.SerializeToString())
