"""Predictions at once: what a connection says is what the route says, however a request comes in."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.monitoring.metrics import Metrics
from service.serving.app import Limits, create_app
from service.serving.connections import Connection, ConnectionLimits, Connections
from service.serving.direct import LONGEST_KNOWN, MOST_BYTES, MOST_KNOWN, Asked, Direct
from service.serving.edge import InFlight
from service.serving.models import Models, given
from service.serving.openapi import PREDICT
from service.serving.server import Server
from service.serving.tokens import Tokens
from service.snapshots.store import RedisStore

BODY = b'{"features":{"a":2,"never seen":1}}'
PATH = "/v1/models/m/predict"
MEDIA = "content-type: application/json\r\n"


class Line:
    """A connection whose network is here: what came in pieces, and what went out."""

    def __init__(self, of: "Served", direct: Direct | None) -> None:
        self.said, self.closed = b"", False
        self._connections = Connections(ConnectionLimits(), lambda _: None, lambda: 0, direct)
        server = Server(of.app, self._connections, 2)
        server.config.load()
        state, loop = server.server_state, asyncio.get_running_loop()
        self.connection = Connection(
            self._connections, config=server.config, server_state=state, app_state={}, _loop=loop
        )
        self._tasks = state.tasks
        self.connection.connection_made(cast(Any, self))

    async def say(self, *pieces: bytes) -> bytes:
        """What is answered to these, each of which comes when all before are answered or wait for more."""
        self.said = b""
        for piece in pieces:
            if not self.closed:
                self.connection.data_received(piece)
            for _ in range(20):  # turns: until those that can are done
                await asyncio.sleep(0)
            while self._tasks and not self.connection.keeps_us_waiting:
                await asyncio.wait(self._tasks, timeout=10)
        return self.said

    def write(self, data: bytes) -> None:
        self.said += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    abort = write_eof = pause_reading = resume_reading = lambda *_: None


class Served:
    """An application over one model, of three labels with a candidate."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        learner = Learner(Identity(labels=("x", "y", "z")))
        learner.add_candidate("other", Identity(labels=("x", "y", "z"), eta=0.5))
        learner.begin({0: 0})
        learner.apply(0, Records.of(0, [b'{"features":{"a":1},"label":"y"}', b'{"features":{"a":-1},"label":"x"}']))
        self.metrics, self.stopping = Metrics("0", list, lambda: True, dict), False
        about = Models([given("m", learner, 0.0)]), self.metrics, lambda: True, lambda: self.stopping
        limits = Limits(body_bytes=2 * MOST_BYTES, in_flight=1)
        self.app = create_app(*about, cast(RedisStore, None), limits, version="0", tokens=tokens)
        self.direct: Direct = self.app.state.direct
        (self.route,) = [r for r in self.app.routes if isinstance(r, APIRoute) and r.path == PREDICT]

    def line(self) -> Line:
        return Line(self, self.direct)

    def counted(self, code: str = "200") -> float:
        value = self.metrics.registry.get_sample_value(
            "perceptron_http_request_duration_seconds_count", {"route": PREDICT, "method": "POST", "code": code}
        )
        return value or 0.0


def post(body: bytes = BODY, query: str = "", path: str = PATH, more: str = MEDIA, method: str = "POST") -> bytes:
    address = path + (f"?{query}" if query else "")
    return f"{method} {address} HTTP/1.1\r\nhost: x\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


async def _missing(*_: Any) -> None:
    raise AssertionError("the route was asked")


@pytest.mark.parametrize("query", ["", "explain=true", "explain=no&top=1", "candidate=other", "top=2&explain=%6eo"])
@pytest.mark.parametrize("body", [BODY, b'{"instances":[{"features":{"a":1}},{"features":{}}]}', b'{"features":{}}'])
async def test_what_was_asked_before_is_answered_at_once_and_alike(
    query: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served()
    asked, line = post(body, query), served.line()
    long = await line.say(asked)
    assert long.startswith(b"HTTP/1.1 200 OK\r\n")
    monkeypatch.setattr(served.route, "app", _missing)
    half = len(asked) - len(body) // 2
    for pieces in ([asked], [asked[:-1], asked[-1:]], [asked[:20], asked[20:half], asked[half:]]):
        assert await line.say(*pieces) == long
        assert line.connection.idle
    assert served.counted() == 4
    text = json.loads(long.split(b"\r\n\r\n")[1])
    labels = [one["label"] for one in text.get("predictions", [text])]
    for label in set(labels):
        value = served.metrics.registry.get_sample_value("perceptron_predictions_total", {"model": "m", "label": label})
        assert value == 4 * labels.count(label)


ODD = {
    "refused": post(b'{"features":{"a":"x"}}'),
    "no JSON": post(b'{"features":'),
    "empty": post(b""),
    "of another type": post(more="content-type: text/plain\r\n"),
    "encoded": post(more=MEDIA + "content-encoding: gzip\r\n"),
    "encoded, and said first": post(more="content-encoding: gzip\r\n" + MEDIA),
    "not encoded": post(more=MEDIA + "content-encoding: identity\r\n"),
    "large": post(BODY + b" " * MOST_BYTES),
    "too large": post(b" " * 2 * MOST_BYTES + BODY),
    "unknown model": post(path="/v1/models/none/predict"),
    "unknown candidate": post(query="candidate=none"),
    "refused parameter": post(query="top=0"),
    "unknown parameter": post(query="explian=true"),
    "another method": post(method="PUT"),
    "a look": b"GET /v1/models/m HTTP/1.1\r\n\r\n",
    "its head": b"HEAD /livez HTTP/1.1\r\n\r\n",
    "closes": post(more=MEDIA + "connection: close\r\n"),
    "an old client": post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "an old client that stays": post(more=MEDIA + "connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "waits to be let go on": post(more=MEDIA + "expect: 100-continue\r\n"),
    "wants another protocol": post(more=MEDIA + "connection: upgrade\r\nupgrade: h2c\r\n"),
}
CHUNKED = (
    post()
    .replace(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked")
    .replace(BODY, b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n")
)
PLAIN = {
    "known": post(),
    "explained": post(query="explain=true"),
    "in chunks": CHUNKED % (BODY[:5], len(BODY) - 5, BODY[5:]),
}
ENDING = ("too large", "closes", "an old client", "an old client that stays", "wants another protocol")


@pytest.mark.parametrize("seed", range(60))
async def test_however_requests_come_in_they_are_answered_as_by_the_route(seed: int) -> None:
    """In any order, cut anywhere, one behind the other; also what is odd about one of them."""
    random, served = Random(seed), Served()
    kinds = random.choices([*PLAIN], k=4) + random.sample([*ODD], 2)
    random.shuffle(kinds)
    kinds.sort(key=lambda kind: kind in ENDING)
    text = b"".join((PLAIN | ODD)[kind] for kind in kinds)
    cuts = sorted(random.sample(range(1, len(text)), random.choice((0, 1, 3, 10))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for query in ("", "explain=true"):
        assert (await served.line().say(post(query=query))).startswith(b"HTTP/1.1 200 ")
    by_route = Line(served, None)
    expected = await by_route.say(*pieces)
    line = served.line()
    assert await line.say(*pieces) == expected, kinds
    assert line.closed == by_route.closed


async def test_of_many_that_come_at_a_time_one_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's other work is not held up by who sends a thousand."""
    served, answered = Served(), list[bytes]()
    await served.line().say(post())
    answer = served.direct.answer

    def answering(asked: Asked, headers: Any, body: bytes) -> bytes | None:
        answered.append(body)
        return answer(asked, headers, body)

    monkeypatch.setattr(served.direct, "answer", answering)
    said = await served.line().say(post() * 20, post())
    assert said.count(b"HTTP/1.1 200 ") == 21
    assert len(answered) == 2


async def test_a_body_that_is_slow_or_never_comes_is_its_routes() -> None:
    """It is looked for once a second. A connection that ends is counted, and one at the service's stop answered."""
    served, asked = Served(), post()
    await served.line().say(asked)
    for do in ("check", "shutdown", "connection_lost"):
        line = served.line()
        assert await line.say(asked[:-5]) == b""
        assert line.connection.keeps_us_waiting
        assert not line.connection.idle
        assert not line._tasks
        getattr(line.connection, do)(*[None] * (do == "connection_lost"))
        assert len(line._tasks) == 1
        if do == "connection_lost":
            await asyncio.wait(line._tasks, timeout=10)
        else:
            assert (await line.say(asked[-5:])).startswith(b"HTTP/1.1 200 ")
            assert line.closed == (do == "shutdown")
    assert (served.counted(), served.counted("400")) == (3, 1)


async def test_who_does_not_read_is_not_answered_until_it_does() -> None:
    served = Served()
    line = served.line()
    long = await line.say(post())
    line.connection.pause_writing()
    assert await line.say(post()) == b""
    line.connection.resume_writing()
    assert await line.say(b"") == long


async def test_the_time_for_a_head_begins_with_it() -> None:
    """And not when the answer before was given."""
    served = Served()
    line = served.line()
    long = await line.say(post())
    line.connection._since -= 60
    await line.say(post()[:20])
    line.connection.check()
    assert not line.closed
    assert await line.say(post()[20:]) == long
    line.connection._since -= 60
    line.connection.check()
    assert line.closed


async def test_at_a_stop_and_where_all_places_are_taken_the_route_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    assert b"connection: close" not in await served.line().say(post())
    monkeypatch.setattr(InFlight, "full", True)
    line = served.line()
    assert (await line.say(post())).startswith(b"HTTP/1.1 503 ")
    monkeypatch.undo()
    assert (await line.say(post())).startswith(b"HTTP/1.1 200 ")
    served.stopping = True
    said = await line.say(post())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said


async def test_addresses_without_end_are_not_kept() -> None:
    served = Served()
    line = served.line()
    for i in range(2 * MOST_KNOWN + 10):
        served.direct.add(b"/", b"top=%d" % i, cast(Any, (i,)))
    assert len(served.direct._known) == 10
    assert b"HTTP/1.1 200 " in await line.say(post(query="top=" + "0" * LONGEST_KNOWN + "1"))
    assert len(served.direct._known) == 10
    assert b"HTTP/1.1 404 " in await line.say(post(path="/v1/models/none/predict"))
    assert len(served.direct._known) == 10


async def test_a_defect_is_a_problem_and_goes_on_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served()
    line = served.line()
    assert (await line.say(post())).startswith(b"HTTP/1.1 200 ")
    monkeypatch.setattr(Learner, "score", lambda *_: 1 / 0)
    said = await line.say(post())
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"the service failed on this request; its log says why" in said
    assert "ZeroDivisionError" in caplog.text
    assert served.counted("500") == 1


async def test_who_is_answered_at_once_needs_a_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text("token-0123456789abcd\n")
    served = Served(Tokens(str(tmp_path / "tokens")))
    line = served.line()

    async def status(token: Sequence[str]) -> bytes:
        more = "".join(f"authorization: Bearer {one}\r\n" for one in token)
        return (await line.say(post(more=MEDIA + more)))[9:12]

    assert await status([]) == b"401"
    assert await status(["token-0123456789abcd"]) == b"200"
    monkeypatch.setattr(served.route, "app", _missing)
    for token, code in ((["token-0123456789abcd"], b"200"), (["another"], b"401"), ([], b"401")):
        assert await status(token) == code
