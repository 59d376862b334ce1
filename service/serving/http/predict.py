"""Answers prediction requests."""

from collections.abc import Callable

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope

from service.errors import Rejected
from service.serving.http.endpoint import Endpoint
from service.serving.http.request_bodies import InFlight
from service.serving.predictions import PredictionRequest, PredictParameters
from service.serving.scoring import Predictor

DEFAULTS = PredictParameters()


class Predict(Endpoint):
    """Answers prediction requests to the model that the scope's `path_params` name."""

    def __init__(self, predictor: Predictor, in_flight: InFlight, parse: Callable[[bytes], PredictionRequest]) -> None:
        """`parse` makes a request of its body."""
        self._predictor, self._in_flight, self._parse = predictor, in_flight, parse

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """The predictions."""
        name, text = scope["path_params"]["name"], scope["query_string"]
        query = PredictParameters.model_validate(dict(QueryParams(text))) if text else DEFAULTS
        self._predictor.answering(name, query.candidate)  # raise before waiting for the body
        body = await self._in_flight.read(scope, receive)
        self._in_flight.take(len(body))
        request = self._parse(body)
        try:
            return await self._predictor.predict(name, request, query)
        except Rejected as rejected:
            raise request.fault(rejected) from None
        finally:
            self._in_flight.release(len(body))
