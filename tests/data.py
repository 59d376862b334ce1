"""Real data sets that Python packages contain, with two classes each, standardised."""

import warnings
from functools import cache

import numpy as np
from numpy.typing import NDArray

Table = tuple[NDArray[np.float64], NDArray[np.float64]]
NAMES = ("breast cancer", "phishing")


@cache
def table(name: str) -> Table:
    """The features of a data set, with mean 0 and variance 1, and its labels, ±1."""
    x, y = _phishing() if name == "phishing" else _breast_cancer()
    return (x - x.mean(axis=0)) / x.std(axis=0), np.where(y, 1.0, -1.0)


def _breast_cancer() -> Table:
    from sklearn import datasets

    x, y = datasets.load_breast_cancer(return_X_y=True)
    return x, y


def _phishing() -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from river import datasets
    rows = list(datasets.Phishing())
    return np.array([list(x.values()) for x, _ in rows], np.float64), np.array([y for _, y in rows])
