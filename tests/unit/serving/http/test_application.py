"""The application over a socket: HEAD, methods, metrics, gzip, CORS, a prefix, internal errors."""

import gzip
import json
import zlib
from collections import Counter

import pytest

from service.learning.learner import Learner
from service.settings.connections import HttpSettings
from tests.unit.serving.http.test_limits import BODY, JSON, PREDICT, LocalServer, post

PACKED = gzip.compress(BODY)
GZIP = JSON + "content-encoding: gzip\r\n"


def get(path: str, headers: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode()


@pytest.mark.parametrize("path", ["/livez", "/metrics", "/v1/models/m", "/v1/models/none", "/page/page.js"])
async def test_head_is_answered_wherever_get_is(path: str) -> None:
    """The answer has the same headers, content-length too, and no body."""
    async with LocalServer().running() as server:
        full_answer = await server.ask(get(path))
        client = await server.client(get(path, method="HEAD"))
        head = await client.answer(has_body=False)
        assert await client.is_silent()
        assert head.status == full_answer.status
        if path != "/metrics":  # /metrics has more lines each time
            assert head.headers | {b"date": b""} == full_answer.headers | {b"date": b""}
        assert b"content-length" in head.headers


@pytest.mark.parametrize(("method", "path", "allowed"), [("PUT", "/livez", b"GET, HEAD"), ("HEAD", PREDICT, b"POST")])
async def test_an_answer_of_405_lists_the_allowed_methods(method: str, path: str, allowed: bytes) -> None:
    async with LocalServer().running() as server:
        answer = await (await server.client(get(path, method=method))).answer(has_body=method != "HEAD")
        assert answer.status == 405
        assert sorted(answer.headers[b"allow"].split(b", ")) == sorted(allowed.split(b", "))


async def test_requests_are_counted_by_route_method_and_status() -> None:
    predict_route = "/v1/models/{name}/predict"
    requests = {
        post(): (predict_route, "POST", "200"),
        post(query="explain=true", headers=GZIP, body=gzip.compress(BODY)): (predict_route, "POST", "200"),
        post(path="/v1/models/none/predict"): (predict_route, "POST", "404"),
        post(b"{}"): (predict_route, "POST", "422"),
        get("/livez"): ("/livez", "GET", "200"),
        get("/nothing", method="PROPFIND"): ("unknown", "any", "404"),
        get("/v1/models/m%2Fpredict"): ("unknown", "any", "404"),
    }
    async with LocalServer().running() as server:
        for request in requests:
            await server.ask(request)
        await (await server.client(get("/livez", method="HEAD"))).answer(has_body=False)
        for (route, method, code), expected in Counter([*requests.values(), ("/livez", "HEAD", "200")]).items():
            labels = {"route": route, "method": method, "code": code}
            name = "perceptron_http_request_duration_seconds_count"
            assert server.metrics.registry.get_sample_value(name, labels) == expected, labels
        predictions = server.metrics.registry.get_sample_value
        assert predictions("perceptron_predictions_total", {"model": "m", "label": "y"}) == 2


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", BODY),
        ("explain=true", b'{"instances":[{"features":{"a":1}},{"features":{}}]}'),
        ("candidate=&top=2&explain=%6eo", BODY + b" " * 100_000),
    ],
    ids=["", "explained", "large"],
)
async def test_a_prediction_is_the_same_however_its_request_comes(query: str, body: bytes) -> None:
    """The body comes whole, in two packets, as gzip, and as gzip of several members."""
    packed = gzip.compress(body)
    members = gzip.compress(body[:10]) + gzip.compress(b"") + gzip.compress(body[10:])
    request, cut = post(body, query), len(post(b"", query)) + 5
    async with LocalServer().running() as server:
        expected = await server.ask(request)
        assert expected.status == 200
        for packets in (
            [request[:cut], request[cut:]],
            [post(packed, query, GZIP)],
            [post(packed, query, JSON + "content-encoding: identity, X-GZIP\r\n")],
            [post(packed, query, GZIP)[:-9], packed[-9:]],
            [post(members, query, GZIP)[:-30], members[-30:]],
        ):
            assert (await server.ask(*packets)).body == expected.body


async def test_a_body_that_is_not_what_its_content_encoding_says_is_refused() -> None:
    async with LocalServer().running() as server:
        for body in (b"", BODY, PACKED[:-1], PACKED + b"x", zlib.compress(BODY), PACKED[:-8] + b"12345678"):
            answer = await server.ask(post(body, headers=GZIP))
            assert (answer.status, "content-encoding" in answer.detail) == (400, True), body
        for encoding in ("br", "gzip, gzip", "deflate"):
            answer = await server.ask(post(headers=f"{JSON}content-encoding: {encoding}\r\n"))
            assert (answer.status, "content-encoding" in answer.detail) == (415, True), encoding
        assert (await server.ask(post(headers=f"{JSON}content-encoding: identity\r\n"))).status == 200


async def test_a_bomb_holds_neither_the_loop_nor_memory() -> None:
    """The body unpacks to a thousand times its size, or has many empty members."""
    bombs = gzip.compress(b" " * (64 << 20)), gzip.compress(b"") * 10_000
    async with LocalServer().running() as server:
        client = await server.client(post(bombs[0], headers=GZIP))
        for _ in range(3):
            assert (await server.ask(get("/livez"))).status == 200
        assert (await client.answer()).status == 413
        assert (await server.ask(post(bombs[1], headers=GZIP))).status == 422


async def test_pages_of_listed_origins_may_send_requests() -> None:
    """CORS: preflight requests need no token, and predictions follow the same rule as other requests."""
    origin, other_origin = "origin: https://a.example\r\n", "origin: https://b.example\r\n"
    preflight = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,traceparent\r\n"
    settings = (
        HttpSettings(allowed_origins=origins, cors_headers=["traceparent"])
        for origins in (["https://a.example"], [], ["*"])
    )
    one_origin, no_origin, any_origin = map(LocalServer, settings)
    async with one_origin.running(), no_origin.running(), any_origin.running():
        answer = await one_origin.ask(get(PREDICT, origin + preflight, "OPTIONS"))
        assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (200, b"https://a.example")
        assert b"POST" in answer.headers[b"access-control-allow-methods"]
        assert b"authorization" in answer.headers[b"access-control-allow-headers"].lower()
        assert (await one_origin.ask(get(PREDICT, other_origin + preflight, "OPTIONS"))).status == 400
        assert (await no_origin.ask(get(PREDICT, origin + preflight, "OPTIONS"))).status == 405
        for request, status in (
            (post(headers=JSON + origin), 200),
            (post(b"{", headers=JSON + origin), 422),
            (get("/v1/models", origin), 200),
        ):
            answer = await one_origin.ask(request)
            assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (status, b"https://a.example")
            assert (await any_origin.ask(request)).headers[b"access-control-allow-origin"] == b"*"
            assert b"access-control-allow-origin" not in (await no_origin.ask(request)).headers
        assert b"access-control-allow-origin" not in (await one_origin.ask(post(headers=JSON + other_origin))).headers


@pytest.mark.parametrize("prefix", ["", "/per/ceptron"], ids=["taken away", "left"])
async def test_a_proxy_may_serve_it_under_a_prefix(prefix: str) -> None:
    """The service works whether the proxy removes the prefix or leaves it, since links in pages are relative."""
    async with LocalServer(HttpSettings(root_path="/per/ceptron")).running() as server:
        for path in ("/", "/docs", "/livez", "/v1/models/m", "/static-offline-docs/swagger-ui.css", "/page/page.js"):
            assert (await server.ask(get(prefix + path))).status == 200, path
        assert (await server.ask(post(path=prefix + PREDICT))).status == 200
        document = json.loads((await server.ask(get(f"{prefix}/openapi.json"))).body)
        assert document["servers"] == [{"url": "/per/ceptron"}]
        for page in ("/", "/docs"):
            text = (await server.ask(get(prefix + page))).body.decode()
            assert 'href="/' not in text
            assert 'src="/' not in text
            assert "'/openapi.json'" not in text
        assert (await server.ask(get("/per/ceptronx/livez"))).status == 404
        redirect = await server.ask(get("/per/ceptron"))
        assert (redirect.status, redirect.headers[b"location"]) == (307, b"/per/ceptron/")


async def test_a_defect_is_a_problem_and_goes_on_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalServer().running() as server:
        assert (await server.ask(post())).status == 200
        monkeypatch.setattr(Learner, "score", lambda *_: 1 / 0)
        answer = await server.ask(post())
        assert answer.status == 500
        assert "ZeroDivisionError" in caplog.text
        assert server.request_count("500") == 1
