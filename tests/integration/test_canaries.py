"""No secret is written anywhere: each secret is a canary, and everything that processes write is searched for it."""

import asyncio
import base64
import contextlib
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from redis import Redis

from service.embedded import servers
from service.embedded.servers import Server, free_port
from tests.certificates import Certificates
from tests.conftest import DEADLINE, clean_environment, create_topic, perceptron, read_all, wait

pytestmark = pytest.mark.nightly

NOWHERE = "127.0.0.1:1"
MARK = "c4n4ry"
"""The start of every secret; nothing else contains it."""


def secret(name: str) -> str:
    return f"{MARK}{name}0123456789"


def assert_no_secret(*texts: Any) -> None:
    """Assert that no text contains a secret, plain or in Base64, as HTTP and SASL send it."""
    # Its letters in Base64 depend on the number of bytes before it, modulo three.
    encoded = [base64.b64encode(b"-" * i + MARK.encode())[i + (i > 0) : (i + len(MARK)) * 8 // 6] for i in range(3)]
    for text in texts:
        raw = text if isinstance(text, bytes) else str(text).encode()
        assert MARK.encode() not in raw.lower(), raw.decode(errors="replace")
        assert not any(form in raw for form in encoded), raw.decode(errors="replace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Path:
    """Each secret as a file, and a key that one of them opens."""
    folder = tmp_path_factory.mktemp("canaries")
    for name in ("sasl", "oauth", "key", "token", "metrics"):
        (folder / name).write_text(f"{secret(name)}\n")
    key_file = Certificates.parts(certificates.client)[1]
    encrypt = ["openssl", "pkey", "-aes256", "-passout", f"pass:{secret('key')}", "-in", key_file]
    subprocess.run([*encrypt, "-out", str(folder / "locked")], check=True)
    return folder


def table(**members: Any) -> str:
    """Members of a TOML table."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in members.items())


def tokens(folder: Path) -> str:
    return table(token_file=str(folder / "token"), metrics_token_file=str(folder / "metrics"))


def settings_of(folder: Path, certificates: Certificates, files: bool) -> Iterator[str]:
    """Settings with all secrets that go together, as values or in files; no server answers at their addresses."""
    url = f"redis://user:{secret('url')}@{NOWHERE}/0"

    def setting(name: str, file: str) -> dict[str, str]:
        return {f"{name}_file": str(folder / file)} if files else {name: secret(file)}

    for kafka in (
        table(security_protocol="SASL_PLAINTEXT", sasl_username="user", **setting("sasl_password", "sasl")),
        table(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth_client_id="id",
              oauth_token_url=f"http://{NOWHERE}/token", **setting("oauth_client_secret", "oauth")),
        table(security_protocol="SSL", ssl_certfile=Certificates.parts(certificates.client)[0],
              ssl_keyfile=str(folder / "locked"), **setting("ssl_key_password", "key")),
    ):  # fmt: skip
        other_tables = f'topics = ["x"]\n[redis]\n{table(url=url)}[http]\n{tokens(folder)}'
        yield f'{other_tables}[kafka]\nbootstrap_servers = "{NOWHERE}"\n{kafka}'


@pytest.mark.parametrize("files", [False, True], ids=["values", "files"])
def test_commands_say_no_secret(files: bool, folder: Path, certificates: Certificates, tmp_path: Path) -> None:
    """`config` masks the value, and no error of a command contains it."""
    (tmp_path / "line").write_text('{"a": 1}\n')
    fast_commands = [["config"], ["config", "--json"]]
    slow_commands = [["check"], ["predict", "line", "--url", NOWHERE]]
    for settings in settings_of(folder, certificates, files):
        (tmp_path / "perceptron.toml").write_text(settings)
        for command in fast_commands + slow_commands:
            result = perceptron(*command, cwd=tmp_path)
            assert_no_secret(result.stdout, result.stderr)
            assert "Traceback" not in result.stderr
            if command == ["config"]:
                assert result.returncode == 0, result.stderr
                assert ("**********" in result.stdout) != files
                assert f"redis://***@{NOWHERE}/0" in result.stdout
        slow_commands = []  # they take seconds, since nobody answers


WRONG_FILES = [
    f'redis = "redis://:{MARK}@h/0"',
    f'[redis]\nurl = "http://:{MARK}@h:1/0"',
    f'[kafka]\nbootstrap_servers = "u:{MARK}@h:1"',
    f'[kafka]\nsasl_password = "{MARK}',  # not TOML
    f'[kafka]\nsasl_password_file = "perceptron.toml"\n#{MARK}',  # two lines, no secret
]
WRONG_VARIABLES = {
    "KAFKA": f'{{"sasl_password": ["{MARK}"]}}',
    "REDIS": f"redis://:{MARK}@h/0",
    "KAFKA__SASL_PASWORD": MARK,
}
WRONG_FLAGS = [["run", "-t", "x", "--redis", f"redis://:{MARK}@[::1"], ["healthcheck", "--url", f"u:{MARK}@{NOWHERE}"]]


@pytest.mark.parametrize(
    ("arguments", "text", "variables"),
    [
        *((["config"], text, {}) for text in WRONG_FILES),
        *((["config"], "", {f"PERCEPTRON_{name}": value}) for name, value in WRONG_VARIABLES.items()),
        *((arguments, "", {}) for arguments in WRONG_FLAGS),
    ],
)
def test_no_error_has_the_secret(arguments: list[str], text: str, variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "perceptron.toml").write_text(text)
    result = perceptron(*arguments, cwd=tmp_path, env=variables)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result
    assert_no_secret(result.stdout, result.stderr)


async def test_a_service_at_work_writes_no_secret(
    kafka: Server, folder: Path, certificates: Certificates, topic: str, tmp_path: Path
) -> None:
    """Neither the log, answers, dead letters, Redis nor `ps` has one; a password, tokens and TLS are in use."""
    with contextlib.ExitStack() as stack:
        (tmp_path / "redis").mkdir()
        redis = stack.enter_context(servers.start_redis(tmp_path / "redis"))
        admin = stack.enter_context(Redis(host="127.0.0.1", port=redis.port))
        admin.config_set("requirepass", secret("url"))
        port = free_port()
        settings = f"""topics = ["{topic}"]
create_topics = true
kafka = {{ bootstrap_servers = "{kafka.address}", group_id = "g-{topic}" }}
redis.url = "redis://:{secret("url")}@{redis.address}/0"
[http]
port = {port}
ssl_certfile = "{certificates.server}"
{tokens(folder)}"""
        (tmp_path / "perceptron.toml").write_text(settings)
        log = tmp_path / "log"
        command = [sys.executable, "-m", "service", "run"]
        with log.open("wb") as out:
            options = {"stdout": out, "stderr": out, "env": clean_environment(), "cwd": tmp_path}
            process = subprocess.Popen(command, **options)  # type: ignore[call-overload]  # noqa: ASYNC220
        stack.callback(process.wait)
        stack.callback(process.kill)
        url = f"https://127.0.0.1:{port}"
        http = stack.enter_context(
            httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=certificates.ca))
        )
        bearer, scrape = ({"authorization": f"Bearer {secret(name)}"} for name in ("token", "metrics"))

        def both_are_saved() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                answer = http.get(f"/v1/models/{topic}", headers=bearer)
                return answer.status_code == 200 and answer.json()["next"].get("0") == 2 and not answer.json()["ahead"]
            return False

        await create_topic(kafka, topic)
        events = b'{"features": {"a": 1}, "label": 1}\n{"features": {"a": 1}, "label": 7}\n'
        result = perceptron("produce", "-", "--no-check", stdin=events, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        await asyncio.to_thread(wait, both_are_saved, "both records are read and saved")
        wrong_header = {"authorization": f"Bearer {secret('guess')}"}
        for headers in (bearer, scrape, wrong_header, {}):
            for path in ("/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/models", f"/v1/models/{topic}",
                         f"/v1/models/{topic}/weights", f"/v1/models/{topic}/versions", "/v1/models/none"):  # fmt: skip
                answer = http.get(path, headers=headers)
                assert_no_secret(answer.text, answer.headers)
            refusal = http.post(f"/v1/models/{topic}/predict", headers=headers, json={"features": {"a": MARK}})
            assert_no_secret(refusal.text, refusal.headers)
        (tmp_path / "line").write_text('{"a": 1}\n')
        for arguments in ("predict line", "healthcheck", "check", "config", "inspect", "dead-letters list"):
            result = perceptron(*arguments.split(), cwd=tmp_path)
            assert result.returncode == 0, (arguments, result)
            assert_no_secret(result.stdout, result.stderr)
        assert_no_secret(*psutil.Process(process.pid).cmdline())
        letters = await read_all(kafka, f"{topic}.dead-letters")
        assert len(letters) == 1
        assert_no_secret(*letters)
        admin.execute_command("AUTH", secret("url"))
        keys = admin.keys("*")
        assert len(keys) > 1
        for key in keys:
            assert_no_secret(key, admin.dump(key), admin.hgetall(key) if admin.type(key) == b"hash" else "")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, DEADLINE) == 0
        # A wrong password for Redis: the error names the setting only.
        (tmp_path / "perceptron.toml").write_text(settings.replace(secret("url"), secret("wrong")))
        result = perceptron("check", cwd=tmp_path)
        assert result.returncode == 3
        assert f"fail  Redis at {redis.address}/0: " in result.stdout
        assert_no_secret(result.stdout, result.stderr, log.read_bytes())
