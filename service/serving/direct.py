"""Predictions at once: in the turn of the event loop in which a request is read, past tasks, layers and routing.

Those cost most of a prediction. What is asked as it was before, by the same address, and has nothing odd about it is
answered here as its route would answer. All else is left to that, errors too: there is one function that predicts, and
one that says what is wrong.
"""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from service.monitoring.metrics import Metrics
from service.serving.access import given
from service.serving.edge import InFlight, unreadable
from service.serving.openapi import PREDICT
from service.serving.predictor import Predictor
from service.serving.requests import LARGE
from service.serving.tokens import Tokens

MOST_BYTES = LARGE
"""Of a body. A larger one takes longer to read than its route does."""
MOST_KNOWN = 1000
LONGEST_KNOWN = 500
"""So many addresses of so many bytes are remembered at most."""


class Asked(NamedTuple):
    """What an address asks for: the parameters of its route, once FastAPI has found them."""

    name: str
    explain: bool
    top: int
    candidate: str | None


class Direct:
    """Answers for whoever asks by an address that is known; `tokens` are those that who asks needs."""

    def __init__(
        self,
        predictor: Predictor,
        in_flight: InFlight,
        metrics: Metrics,
        stopping: Callable[[], bool],
        tokens: Tokens | None,
    ) -> None:
        self._predictor, self._in_flight, self._stopping, self._tokens = predictor, in_flight, stopping, tokens
        self._timed = metrics.requests.labels(PREDICT, "POST", "200")
        self._known: dict[bytes, Asked] = {}
        self.known = self._known.get
        """What an address, of a request's first line, asks for; None where that is not known."""

    def add(self, path: bytes, query: bytes, asked: Asked) -> None:
        """Know an address from now on; where there are many, those that are still asked for come again."""
        address = path + b"?" * bool(query) + query
        if len(address) <= LONGEST_KNOWN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[address] = asked

    def answer(self, asked: Asked, headers: Collection[tuple[bytes, bytes]], body: bytes) -> bytes | None:
        """The JSON of the answer, of status 200; None where the route is to answer."""
        started = time.perf_counter()
        if unreadable(headers) or self._in_flight.full or self._stopping():
            return None
        if self._tokens is not None and not self._tokens.accept(given(headers)):
            return None
        try:
            made = self._predictor.at_once(asked.name, body, asked.explain, asked.top, asked.candidate)
        except Exception:
            return None
        if made is None:
            return None
        said = msgspec.json.encode(made)
        self._timed.observe(time.perf_counter() - started)
        return said
