"""The service's own TLS: new certificates, clients that speak something else, the headers of every answer."""

import contextlib
import json
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.conftest import Running, one_line, perceptron, wait

NOWHERE = "127.0.0.1:1"
TOKEN = "a-token-of-ours-0123"  # noqa: S105 - only for these tests
UNIT = '[models.and]\nrule = "threshold-unit"\nweights = {a = 1, b = 1}\nthreshold = 2\n'
SECURITY_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("https")


@pytest.fixture(scope="module")
def service(folder: Path, certificates: Certificates) -> Iterator[Running]:
    """A threshold unit, served over TLS with the files in `folder`, without Kafka and Redis."""
    install(folder, certificates.server)
    (folder / "tokens").write_text(f"{TOKEN}\n")
    settings = (
        f'[http]\nssl_certfile = "{folder}/own.crt"\nssl_keyfile = "{folder}/own.key"\ntoken_file = "{folder}/tokens"\n'
        f"header_timeout = 1.0\n{UNIT}"
    )
    service = Running("", NOWHERE, NOWHERE, folder, settings, "--no-learn", ca=certificates.ca)
    with contextlib.closing(service):
        wait(lambda: service.is_ok("/livez"), "it listens")
        yield service


def install(folder: Path, leaf: str) -> None:
    for part, name in zip(Certificates.parts(leaf), ("own.crt", "own.key"), strict=True):
        shutil.copy(part, folder / name)


def served_certificate(service: Running) -> bytes:
    """The certificate that the next connection gets."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", service.port)))


def certificate_of(leaf: str) -> bytes:
    text = Path(Certificates.parts(leaf)[0]).read_text()
    return ssl.PEM_cert_to_DER_cert(text[: text.index("-----END CERTIFICATE-----") + 26])


def exchange(service: Running, text: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Send this, and return every byte until the connection ends."""
    answer = b""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 10))
        if context:
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
        connection.sendall(text)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
    return answer


def test_a_certificate_is_replaced_while_it_runs(service: Running, folder: Path, certificates: Certificates) -> None:
    """The next connection has it. If the files are broken or do not match, the previous one stays; this is logged."""
    assert f"url=https://127.0.0.1:{service.port}" in service.log.read_text()
    old, new = certificate_of(certificates.server), certificate_of(certificates.elsewhere)
    assert served_certificate(service) == old
    install(folder, certificates.elsewhere)
    assert served_certificate(service) == new
    (folder / "own.key").write_text("no key")
    assert served_certificate(service) == served_certificate(service) == new
    warning = f"ssl_certfile: {folder}/own.crt: expected a certificate in PEM, and in {folder}/own.key"
    assert service.log.read_text().count(warning) == 1
    shutil.copy(Certificates.parts(certificates.server)[1], folder / "own.key")
    assert served_certificate(service) == new
    assert "key values mismatch; the previous content stays in use" in service.log.read_text()
    install(folder, certificates.server)
    assert served_certificate(service) == old


@pytest.mark.nightly
def test_other_protocols_are_closed_and_leave_no_trace(service: Running, certificates: Certificates) -> None:
    """Plain HTTP, noise, an old TLS and an unfinished handshake are closed, and the log has no line about them."""
    log = service.log.read_text()
    assert not exchange(service, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP")
    exchange(service, b"\0" * 4096)
    hello = b"\x16\x03\x01" + struct.pack(">H", 300) + b"\1" + (296).to_bytes(3, "big") + b"\3\3"
    assert exchange(service, hello) == b"", "closed after header_timeout"
    old = ssl.create_default_context(cafile=certificates.ca)
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="EOF"):  # uvloop ends the connection without an alert
        exchange(service, b"", old)
    assert service.log.read_text() == log


@pytest.mark.nightly
def test_every_answer_has_the_security_headers(service: Running, certificates: Certificates) -> None:
    """This includes answers of the API, its errors, earlier errors, pages and their files."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/livez", "/metrics", "/v1/models/and", "/v1/models/no", "/openapi.json", "/docs", "/nothing",
                 "/static-offline-docs/swagger-ui.css", "/static-offline-docs/no"):  # fmt: skip
        for headers in (bearer, {}):
            for method in ("GET", "HEAD", "PUT"):
                answer = service.http.request(method, path, headers=headers)
                fields = dict(answer.headers)
                assert fields | SECURITY_HEADERS == fields, (path, fields)
                assert fields["strict-transport-security"].startswith("max-age=")
                assert "server" not in fields
                assert all(len(answer.headers.get_list(name)) == 1 for name in fields), fields
                page = path == "/docs" and answer.status_code == 200
                assert ("content-security-policy" in fields) == ("text/html" in fields.get("content-type", "")) == page
    trust = ssl.create_default_context(cafile=certificates.ca)
    for request, status in {
        b"nonsense\r\n\r\n": 400,
        b"GET /livez HTTP/1.1\r\n": 408,
        b"GET /" + b"a" * 70_000: 431,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200: 431,
    }.items():
        head, _, body = exchange(service, request, trust).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), (request[:40], head)
        lines = head.decode().lower().split("\r\n")
        for name, value in SECURITY_HEADERS.items():
            assert lines.count(f"{name}: {value}") == 1, (status, lines)
        assert "strict-transport-security" in head.decode()
        assert json.loads(body)["status"] == status


@pytest.mark.nightly
def test_commands_trust_the_services_own_certificate(
    service: Running, folder: Path, certificates: Certificates, tmp_path: Path
) -> None:
    """At the address of the settings they trust this certificate; elsewhere the system's, or SSL_CERT_FILE."""
    (tmp_path / "perceptron.toml").write_text(
        f'[http]\nport = {service.port}\nssl_certfile = "{folder}/own.crt"\nssl_keyfile = "{folder}/own.key"\n'
        f'token_file = "{folder}/tokens"\n'
    )
    result = perceptron("healthcheck", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr
    url = f"https://localhost:{service.port}"
    for ca, code in ((certificates.ca, 0), (certificates.foreign_ca, 1)):
        result = perceptron("healthcheck", "--url", url, cwd=tmp_path, env={"SSL_CERT_FILE": ca})
        assert (result.returncode, "TLS: certificate verify failed: " in one_line(result.stdout + result.stderr)) == (
            code,
            bool(code),
        )
    (tmp_path / "line").write_text('{"a": 1}\n{"a": 1, "b": 2}\n')
    result = perceptron("predict", "-t", "and", "line", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "-1\t-1\n1\t1\n"), result.stderr
    # Another server at the address of our settings gets no token.
    install(folder, certificates.elsewhere)
    served_certificate(service)
    env = {"PERCEPTRON_HTTP__SSL_CERTFILE": certificates.server, "PERCEPTRON_HTTP__SSL_KEYFILE": certificates.server}
    result = perceptron("predict", "-t", "and", "line", env=env, cwd=tmp_path)
    install(folder, certificates.server)
    assert result.returncode == 3
    assert "TLS: certificate verify failed: " in one_line(result.stderr)


@pytest.mark.nightly
def test_it_stops_in_time_though_clients_never_close_tls(certificates: Certificates, tmp_path: Path) -> None:
    """Idle connections and an unfinished handshake do not delay the end."""
    settings = f'[http]\nssl_certfile = "{certificates.server}"\n{UNIT}'
    service = Running("", NOWHERE, NOWHERE, tmp_path, settings, "--no-learn", ca=certificates.ca)
    with contextlib.closing(service):
        wait(lambda: service.is_ok("/livez"), "it listens")
        trust = ssl.create_default_context(cafile=certificates.ca)
        with contextlib.ExitStack() as stack:
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            for _ in range(5):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                tls_connection = stack.enter_context(trust.wrap_socket(connection, server_hostname="localhost"))
                tls_connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                assert tls_connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            assert service.stop(seconds=10) == 0
    assert not any(word in service.log.read_text() for word in ("Traceback", "Cancel"))


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["check", "config", "healthcheck"])
def test_files_are_checked_before_anything_listens(command: str, certificates: Certificates, tmp_path: Path) -> None:
    certificate, key = Certificates.parts(certificates.server)[0], Certificates.parts(certificates.elsewhere)[1]
    (tmp_path / "perceptron.toml").write_text(f'[http]\nssl_certfile = "{certificate}"\nssl_keyfile = "{key}"\n')
    result = perceptron(command, cwd=tmp_path)
    error = f"http.ssl_certfile: {certificate}: expected a certificate in PEM, and in {key} (ssl_keyfile) its key"
    assert (result.returncode, error in one_line(result.stderr)) == (2, True), result


@pytest.mark.nightly
def test_a_token_is_not_sent_elsewhere(tmp_path: Path) -> None:
    """If a server redirects `predict`, the command reports that and does not follow."""
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "line").write_text('{"a": 1}\n')
    paths = list[str]()

    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(302)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        log_message = lambda *_: None  # noqa: E731

    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        environment = {"PERCEPTRON_HTTP__TOKEN_FILE": str(tmp_path / "tokens")}
        result = perceptron("predict", "-t", "x", "--url", url, "line", cwd=tmp_path, env=environment)
        server.shutdown()
    assert (result.returncode, paths) == (1, ["/v1/models/x/predict"])
    assert "302 Found" in one_line(result.stderr)
