"""Bearer tokens: which requests need one, token files that change, and errors in them."""

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from structlog.testing import CapturingLogger

from service.credentials import BearerTokens
from service.errors import ConfigurationError
from service.settings.connections import HttpSettings
from tests.certificates import Certificates
from tests.unit.applications import serving

OLD, NEW, SCRAPE = "old-token-0123456789", "new-token-0123456789", "scrape-token-01234567"


def client(**settings: str | None) -> httpx.AsyncClient:
    app = serving(http=HttpSettings.model_validate(settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a file of tokens with a time stamp that no earlier file had."""
    count = 0

    def write(*lines: str, name: str = "tokens") -> str:
        nonlocal count
        count += 1
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        os.utime(tmp_path / name, (count, count))
        return str(tmp_path / name)

    return write


async def test_every_path_but_the_probes_needs_a_token(write: Callable[..., str]) -> None:
    async with client(token_file=write(OLD, "", NEW)) as http:
        for path in ("/v1/models", "/v1/models/none", "/metrics", "/docs", "/openapi.json", "/nowhere", "/livez/"):
            for header in (None, "Bearer", f"Basic {OLD}", OLD, f"Bearer {OLD}x", f"Bearer {OLD} x"):
                answer = await http.get(path, headers={"authorization": header} if header else None)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (path, header)
                assert "authorization: Bearer TOKEN" in answer.json()["detail"]
        for header in (f"Bearer {OLD}", f"bearer {NEW}", f"BEARER  {NEW}"):
            assert (await http.get("/v1/models", headers={"authorization": header})).status_code == 200
        two_headers = [("authorization", f"Bearer {OLD}")] * 2
        assert (await http.get("/v1/models", headers=two_headers)).status_code == 401
        for probe in ("/livez", "/readyz"):
            assert (await http.get(probe)).status_code == 200


async def test_metrics_have_tokens_of_their_own(write: Callable[..., str]) -> None:
    metrics_tokens = write(SCRAPE, name="metrics")
    for tokens, status in ((write(OLD), 401), (None, 200)):
        async with client(token_file=tokens, metrics_token_file=metrics_tokens) as http:
            scrape_header, api_header = ({"authorization": f"Bearer {token}"} for token in (SCRAPE, OLD))
            assert (await http.get("/metrics", headers=scrape_header)).status_code == 200
            assert (await http.get("/metrics", headers=api_header)).status_code == 401
            assert (await http.get("/v1/models", headers=scrape_header)).status_code == status
            assert (await http.get("/v1/models", headers=api_header)).status_code == 200


async def test_beyond_loopback_posts_need_a_file_of_tokens() -> None:
    async with client(host="0.0.0.0") as http:  # noqa: S104 - not bound
        for kind in ("events", "labels"):
            answer = await http.post(f"/v1/models/m/{kind}", json={})
            assert answer.status_code == 403
            assert "http.ingest_token_file" in answer.json()["detail"]
        assert (await http.get("/v1/models")).status_code == 200


def test_a_file_that_changes_is_read_again(write: Callable[..., str]) -> None:
    tokens = BearerTokens(file := write(OLD), logger := CapturingLogger())
    write(OLD, NEW)
    assert tokens.accept(OLD)
    assert tokens.accept(NEW)
    write(NEW)
    assert not tokens.accept(OLD)
    # A file that cannot be read, or has no token, takes no right away. Each error is reported once.
    os.remove(file)
    assert tokens.accept(NEW)
    assert tokens.accept(NEW)
    write("short")
    assert tokens.accept(NEW)
    write(OLD)
    assert not tokens.accept(NEW)
    assert tokens.accept(OLD)
    messages = [call.args[0] for call in logger.calls]
    assert len(messages) == 2
    assert all(message.startswith(file) for message in messages)
    assert all(message.endswith("the previous content stays in use") for message in messages)


@pytest.mark.parametrize(
    ("content", "place"),
    [("\n \n", ""), (f"{OLD}\nsecret\n", "line 2"), (f"{OLD} {NEW}", "line 1"), ("é" * 20, "line 1")],
)
def test_a_file_without_valid_tokens_is_an_error_of_one_line(tmp_path: Path, content: str, place: str) -> None:
    """The error names file and line, and quotes nothing of the file."""
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        BearerTokens(str(tmp_path / "tokens"))
    error = str(caught.value)
    assert error.startswith(str(tmp_path / "tokens"))
    assert place in error
    assert "secret" not in error
    assert "\n" not in error
    with pytest.raises(ValueError, match="No such file"):
        HttpSettings(token_file=str(tmp_path / "none"))


def test_an_open_port_is_warned_of(write: Callable[..., str], certificates: Certificates) -> None:
    """The settings warn of a port that others reach if nobody needs a token, or if tokens are sent unencrypted."""
    tokens, certificate = write(OLD), certificates.server
    for host in ("127.8.0.1", "::1", "localhost"):
        assert not HttpSettings(host=host).warnings
        assert not HttpSettings(host=host, token_file=tokens).warnings
    for host in ("0.0.0.0", "::", "example.org"):  # noqa: S104 - not bound
        for settings in (HttpSettings(host=host), HttpSettings(host=host, ssl_certfile=certificate)):
            (warning,) = settings.warnings
            assert "set http.token_file" in warning
        (warning,) = HttpSettings(host=host, token_file=tokens).warnings
        assert "set http.ssl_certfile" in warning
        assert not HttpSettings(host=host, token_file=tokens, ssl_certfile=certificate).warnings
