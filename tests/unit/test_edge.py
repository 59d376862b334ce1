"""The edge of HTTP, over real connections: what is answered to a head alone, and to a body that is not read."""

import pytest

from tests.unit.test_direct import Served


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
