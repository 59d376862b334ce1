"""The mistake bounds of finite data with a separating vector, as the texts give them."""

import math
from typing import NamedTuple

import numpy as np

from service.learning.kernel.kernel import Vector


class Separation(NamedTuple):
    """The figures of finite data and a separating vector that bound the updates of a mistake-driven rule.

    x is the vector that an update adds, up to its sign: the event's, times η·weight, and twice that for bipolar
    error-correction. `squared_radius` is R² = β² = max ‖x‖²; with margins each ‖x‖² has 2·η·weight·margin added, since
    ‖w‖² can grow by that too. `margin` is γ = α = min y·w_opt·x, `squared_norm` is ‖w_opt‖². With three labels or more
    x is Kesler's vector, whose squared length is twice that of the event's.

    >>> Separation(squared_radius=4.0, margin=0.5, squared_norm=1.0).updates
    16.0
    """

    squared_radius: float
    margin: float
    squared_norm: float

    @property
    def updates(self) -> float:
        """(R/γ)²·‖w_opt‖² (Ahmed & Pavlu), which is Haykin's n_max = β²·‖w0‖²/α²: from zero, in any order."""
        return self.squared_radius * self.squared_norm / self.margin**2

    def sides(self, n: Vector) -> tuple[Vector, Vector]:
        """n²α²/‖w0‖² and n·β²: the limits of ‖w(n)‖² after n updates from zero (Haykin)."""
        return n * n * self.margin**2 / self.squared_norm, n * self.squared_radius

    def updates_from(self, start: Vector, w_opt: Vector) -> float:
        """D² = ‖ω(0) - a·ω_opt‖² with a = (β² + 1)/(2γ) and ‖ω_opt‖ = 1: from any start (Hu)."""
        norm = math.sqrt(self.squared_norm)
        a = (self.squared_radius + 1.0) / (2.0 * self.margin / norm)
        return float(np.sum((start - a * w_opt / norm) ** 2))
