"""Who may ask: whoever has a token, where tokens are set. Probes are open to all: an orchestrator has none.

So are the page's files: a browser asks for them before it has one, and they hold nothing of any model.
"""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from service.serving import page, problems
from service.serving.tokens import Tokens

OPEN = ("/livez", "/readyz", *page.OPEN)
METRICS = "/metrics"


class Access:
    """Lets through who has a token. Without a file of their own the metrics need those of all else."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None, metrics_tokens: Tokens | None) -> None:
        self._app, self._tokens, self._metrics = app, tokens, metrics_tokens or tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] == "http" and scope["path"] not in OPEN:
            tokens = self._metrics if scope["path"] == METRICS else self._tokens
            if tokens is not None and not tokens.accept(given(scope["headers"])):
                said = "send a token, with the header authorization: Bearer TOKEN"
                headers = {"www-authenticate": "Bearer"}
                return await problems.response(401, said, headers=headers)(scope, receive, send)
        await self._app(scope, receive, send)


def given(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of a request; empty where there is none, or several."""
    found = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
