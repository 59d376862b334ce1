"""The short way to a prediction: past routing, and past solving what its route depends on, which cost most of it.

There is one function that answers, that of the route. It comes to be called with what FastAPI made of a query string;
a request with the same one then has the same parameters. So whatever is odd takes the long way, and both are one.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.serving import problems

MOST_KNOWN = 100
LONGEST_KNOWN = 200
"""So many query strings of so many bytes are remembered at most."""


AnswersOne = Callable[..., Awaitable[Response]]
"""Of a name, a request's scope and what receives its body, and the parameters."""


class Known:
    """What query strings mean, once FastAPI has said it."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, ...]] = {}
        self.get = self._known.get

    def add(self, scope: Scope, parameters: tuple[Any, ...]) -> None:
        """Take down what it said of this request's; those that are still asked for come again where there are many."""
        query: bytes = scope["query_string"]
        if len(query) <= LONGEST_KNOWN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[query] = parameters


class Short:
    """Calls the function of one route, whose path has one name in it, with the parameters of a known query string."""

    def __init__(self, app: ASGIApp, route: APIRoute, answer: AnswersOne, known: Known) -> None:
        self._app, self._route, self._answer, self._known = app, route, answer, known.get
        self._before, self._behind = route.path.split("{name}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"]
            name = path[len(self._before) : -len(self._behind)]
            fits = path.startswith(self._before) and path.endswith(self._behind) and name and "/" not in name
            parameters = self._known(scope["query_string"])
            if fits and parameters is not None:
                scope["route"] = self._route
                try:
                    response = await self._answer(name, scope, receive, *parameters)
                except problems.ANSWERED as error:
                    response = problems.answer_to(error)
                except Exception:
                    await problems.defect()(scope, receive, send)
                    raise
                return await response(scope, receive, send)
        await self._app(scope, receive, send)
