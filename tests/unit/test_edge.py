"""The edge of HTTP, over real connections: what is answered to a head alone, and to a body that is not read."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from service.serving.connections import ConnectionLimits, Connections
from service.serving.direct import MOST_BYTES
from service.serving.server import Server
from tests.unit.test_direct import BODY, MEDIA, PATH, Line, Served, post


async def said(request: bytes, served: Served | None = None) -> tuple[bytes, bytes]:
    """The head and the body of the answer."""
    head, _, body = (await (served or Served()).line().say(request)).partition(b"\r\n\r\n")
    return head, body


def without_date(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\r\n") if not line.startswith(b"date:")]


@pytest.mark.parametrize(
    "path",
    ["/", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/page/now", "/v1/models", "/v1/models/m",
     "/v1/models/m/weights?top=1", "/v1/models/none", "/nothing", "/static-offline-docs/swagger-ui.css"],
)  # fmt: skip
async def test_head_is_answered_wherever_get_is(path: str) -> None:
    """With the same headers, also those of its length, and no body."""
    served = Served()
    asked, body = await said(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), served)
    head, none = await said(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), served)
    assert none == b""
    if path == "/metrics":  # which has more lines each time
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\ncontent-length: " in head
    else:
        assert without_date(head) == without_date(asked)
        assert b"\r\ncontent-length: %d\r\n" % len(body) in head + b"\r\n"


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [("PUT /livez", b"GET, HEAD"), ("POST /page/now", b"GET, HEAD"), ("HEAD /v1/models/m/predict", b"POST")],
)
async def test_a_method_that_is_not_taken_hears_which_are(asked: str, allowed: bytes) -> None:
    head, _ = await said(f"{asked} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert head.startswith(b"HTTP/1.1 405 ")
    (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"allow: ")]
    assert sorted(line[7:].split(b", ")) == sorted(allowed.split(b", "))


async def test_requests_by_head_are_counted_as_such() -> None:
    served = Served()
    for method in ("HEAD", "PROPFIND", "X"):
        await said(f"{method} /livez HTTP/1.1\r\nhost: x\r\n\r\n".encode(), served)
    text = (await said(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", served))[1].decode()
    line = 'perceptron_http_request_duration_seconds_count{code="200",method="HEAD",route="/livez"} 1.0'
    assert line in text


@contextlib.asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = Server(served.app, Connections(ConnectionLimits(), lambda _: None, lambda: 0), 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        yield reader, writer
        writer.close()
        server.should_exit = True
        await serving


@pytest.mark.parametrize("more", [MEDIA, MEDIA + "expect: 100-continue\r\n"], ids=["", "waits to be let go on"])
async def test_a_body_that_is_said_to_be_too_large_is_not_waited_for(more: str) -> None:
    asked = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{more}content-length: 99999999999\r\n\r\n".encode()
    head, body = await said(asked + BODY * ("expect" not in more))
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close" in head
    assert b"the body is larger than %d bytes" % (2 * MOST_BYTES) in body


async def test_who_is_refused_can_read_why_while_it_sends() -> None:
    """A connection that closes with bytes unread would be reset, and with it what the client has not read."""
    async with connected(Served()) as (reader, writer):
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{MEDIA}content-length: 99999999999\r\n\r\n".encode())
        answer = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(b" " * (64 << 10))
                await writer.drain()
        assert (await asyncio.wait_for(answer, 10)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_is_late_ends_its_connection() -> None:
    served = Served()
    served.direct._in_flight._body_seconds = 0.05
    async with connected(served) as (reader, writer):
        writer.write(post()[:-5])
        answer = await asyncio.wait_for(reader.read(), 10)  # to its end
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close\r\n" in answer


HEAD = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{MEDIA}transfer-encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("pieces", [[HEAD + b"zz\r\n"], [HEAD, b"zz\r\n"], [HEAD + b"1\r\n{\r\n", b"zz\r\n"]])
async def test_a_body_in_bad_chunks_is_refused_once(known: bool, pieces: list[bytes]) -> None:
    served = Served()
    if known:
        await said(post(), served)
    line: Line = served.line()
    answer = await line.say(*pieces)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer
    assert b"the body is not in chunks as HTTP has them" in answer
    assert await line.say(post()) == b"", "nothing is read any more"
    assert not line._tasks
    assert served.counted("400") == 1


async def test_bad_chunks_behind_a_request_that_is_answered_are_not_its_answer() -> None:
    answer = await Served().line().say(post() + HEAD + b"zz\r\n")
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b"400" not in answer


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
async def test_a_body_that_is_encoded_is_refused(known: bool, encoding: str) -> None:
    """Also where its bytes would be JSON, and what was asked before is answered at once."""
    served = Served()
    if known:
        await said(post(), served)
    head, body = await said(post(more=f"{MEDIA}content-encoding: {encoding}\r\n"), served)
    assert head.startswith(b"HTTP/1.1 415 ")
    assert b"send it without a content-encoding" in body
    assert (await said(post(more=f"{MEDIA}content-encoding: identity\r\n"), served))[0].startswith(b"HTTP/1.1 200 ")
