"""Kafka credentials: wrong settings and files are reported before anything connects; tokens are fetched and kept."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError

from service.errors import ConfigurationError
from service.settings.load import load
from service.streaming.kafka import connection
from service.streaming.kafka.connection import client_credentials, msk_iam
from tests.certificates import Certificates

SASL = 'security_protocol = "SASL_SSL"\n'
SSL = 'security_protocol = "SSL"\n'
AWS = f'{SASL}sasl_mechanism = "AWS_MSK_IAM"\n'
WRONG = {
    "no user": (SASL, "sasl_username: is needed for PLAIN"),
    "two passwords": (f'{SASL}sasl_password = "CANARY"\nsasl_password_file = "FOLDER/one"', "sasl_password: set it or"),
    "no file": ('sasl_password_file = "FOLDER/none"', "sasl_password_file: FOLDER/none: No such file or directory"),
    "no text": ('sasl_password_file = "FOLDER/bytes"', "sasl_password_file: FOLDER/bytes: expected text in UTF-8"),
    "no use": ('sasl_password = "CANARY"', "sasl_password: is of no use with security_protocol = PLAINTEXT"),
    "no TLS": ('ssl_cafile = "CA"', "ssl_cafile: is of no use"),
    "no key": (f'{SSL}ssl_certfile = "CERT"\nssl_keyfile = "FOLDER/one"', "in FOLDER/one (ssl_keyfile) its key"),
    "key of another": (f'{SSL}ssl_certfile = "CERT"\nssl_keyfile = "OTHER"', "TLS: key values mismatch"),
    "key alone": (f'{SSL}ssl_keyfile = "OTHER"', "ssl_keyfile: is of no use without ssl_certfile"),
    "wrong key word": (
        f'{SSL}ssl_certfile = "CERT"\nssl_keyfile = "LOCKED"\nssl_key_password = "CANARY"',
        "in LOCKED (ssl_keyfile) its key, which ssl_key_password opens",
    ),
    "no endpoint": (f'{SASL}sasl_mechanism = "OAUTHBEARER"', "oauth_token_url: is needed for OAUTHBEARER"),
    "open endpoint": ('oauth_token_url = "http://id.example/token"', "oauth_token_url: expected https://HOST"),
    "no region": (AWS, "aws_region: is needed for AWS_MSK_IAM"),
    "another's": (
        f'{AWS}aws_region = "eu-west-1"\nsasl_username = "u"',
        "sasl_username: is of no use with AWS_MSK_IAM",
    ),
}
"""Wrong settings, and a part of the error for each. In both, words in capitals stand for files."""


@pytest.mark.parametrize("name", WRONG)
def test_an_error_is_one_line_that_names_setting_and_file(
    name: str, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, content in (("one", b"CANARY"), ("two", b"CANARY\nCANARY"), ("bytes", b"\xff\xfe")):
        (tmp_path / file).write_bytes(content)
    chain, _ = certificates.parts(certificates.client)
    words = {
        "CA": certificates.ca,
        "CERT": chain,
        "OTHER": certificates.parts(certificates.server)[1],
        "LOCKED": _lock_key(certificates, tmp_path),
    }
    text, expected = WRONG[name]
    for word, value in {**words, "FOLDER": str(tmp_path)}.items():
        text = text.replace(f'"{word}', f'"{value}')
        expected = expected.replace(f" {word}", f" {value}")
    Path("perceptron.toml").write_text(f"[kafka]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(None, {})
    error = str(caught.value)
    assert error.startswith("kafka.")
    assert expected in error
    assert "\n" not in error
    assert "CANARY" not in error


def _lock_key(certificates: Certificates, folder: Path) -> str:
    """The file of the client's key, encrypted with a password."""
    from cryptography.hazmat.primitives import serialization

    _, file = certificates.parts(certificates.client)
    key = serialization.load_pem_private_key(Path(file).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"open sesame")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (folder / "locked.key").write_bytes(pem)
    return str(folder / "locked.key")


def test_a_key_is_opened_by_its_password_or_the_file_that_has_it(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word").write_text("open sesame\n")
    chain, _ = certificates.parts(certificates.client)
    files = {"ssl_certfile": chain, "ssl_keyfile": _lock_key(certificates, tmp_path), "security_protocol": "SSL"}
    for word in ({"ssl_key_password": "open sesame"}, {"ssl_key_password_file": str(tmp_path / "word")}):
        assert load(None, {"kafka": {**files, **word}}).kafka.tls.load() is not None


def test_secrets_sent_in_the_clear_are_warned_of() -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": "CANARY"}

    def warnings(servers: str, mechanism: str = "PLAIN") -> list[str]:
        return load(None, {"kafka": {**login, "bootstrap_servers": servers, "sasl_mechanism": mechanism}}).warnings

    (warning,) = warnings("a:1,localhost:2")
    assert warning.startswith("kafka.security_protocol: PLAIN sends its secret")
    assert "CANARY" not in warning
    assert warnings("localhost:1,127.0.0.1:2,[::1]:3") == []
    assert warnings("a:1", "SCRAM-SHA-256") == []


async def test_amazons_signer_makes_a_token_that_is_kept_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signer needs no network with credentials of the environment; without credentials the error says so."""
    monkeypatch.setattr(connection, "TOKEN_SECONDS", 200.0)  # the signer's first import may take long
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARY")
    source = msk_iam("eu-west-1")
    token = await source.token()
    assert len(token) > 100
    assert "CANARY" not in token
    assert await source.token() == token
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(KafkaConnectionError, match="no token for Amazon MSK: "):
        await msk_iam("eu-west-1").token()


async def test_a_token_endpoint_that_is_not_there_is_named() -> None:
    nowhere = "http://127.0.0.1:1/token"
    with pytest.raises(KafkaConnectionError, match=f"the token endpoint {nowhere}: Connection refused"):
        await client_credentials(nowhere, "u", "CANARY", None, None).token()


async def test_a_token_endpoint_that_never_ends_its_answer_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits at most `TOKEN_SECONDS`, and then the connection is closed."""
    monkeypatch.setattr(connection, "TOKEN_SECONDS", 0.2)
    connection_closed = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        connection_closed.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        source = client_credentials(f"http://127.0.0.1:{port}/", "u", "CANARY", None, None)
        with pytest.raises(KafkaConnectionError, match=r"^.*(no token within|the token endpoint).*$"):
            await source.token()
        await connection_closed.wait()
