"""Real data that wheels carry, two classes each, standardised."""

import warnings
from functools import cache

import numpy as np
from numpy.typing import NDArray

Table = tuple[NDArray[np.float64], NDArray[np.float64]]
NAMES = ("breast cancer", "iris", "digits", "phishing")


@cache
def table(name: str) -> Table:
    """Features of mean 0 and variance 1 (constant ones left out), and labels ±1."""
    x, y = _phishing() if name == "phishing" else _of_sklearn(name)
    if name == "iris":  # comes sorted by class
        order = np.random.default_rng(0).permutation(len(y))
        x, y = x[order], y[order]
    x = x[:, x.std(axis=0) > 0.0]
    return (x - x.mean(axis=0)) / x.std(axis=0), np.where(y, 1.0, -1.0)


def _of_sklearn(name: str) -> Table:
    from sklearn import datasets

    x, target = {
        "breast cancer": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
        "digits": datasets.load_digits,
    }[name](return_X_y=True)
    # Versicolor against the rest, which no line separates; odd digits against even ones.
    return x, {"breast cancer": target == 1, "iris": target == 1, "digits": target % 2 == 1}[name]


def _phishing() -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from river import datasets
    rows = list(datasets.Phishing())
    return np.array([list(x.values()) for x, _ in rows], np.float64), np.array([y for _, y in rows])
