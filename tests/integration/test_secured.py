"""A Kafka with authentication: each listener and mechanism, the words of each refusal, rights, new secrets."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.credentials import Tls
from service.embedded.servers import Server
from service.errors import DependencyError
from service.settings.load import load
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.connection import Security, client_credentials
from tests.certificates import Certificates
from tests.conftest import DEADLINE, Run, create_both_topics, event, perceptron, wait
from tests.secured import LISTENERS, MECHANISMS, SecuredKafka, password, secured_kafka

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
OTHER_PROTOCOL = "nothing speaks Kafka over {} there: look at kafka.security_protocol and the port"
TLS_SETTINGS = "look at kafka.ssl_cafile, kafka.ssl_certfile and kafka.ssl_check_hostname"
UNVERIFIED = "TLS: certificate verify failed: "
UNTRUSTED = f"{UNVERIFIED}unable to get local issuer certificate: {TLS_SETTINGS}"
FAILED = "SASL: Authentication failed"
SEE_SETTINGS = "see kafka.sasl_mechanism, kafka.sasl_username and its password"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SecuredKafka]:
    folder = tmp_path_factory.mktemp("secured")
    # The broker ends a connection by token after two seconds, unless it authenticates again.
    with secured_kafka(folder, certificates, ["listener.name.sasl.connections.max.reauth.ms=2000"]) as broker:
        yield broker


def settings(broker: SecuredKafka, listener: str = "SASLTLS", user: str = "learner", **changes: object) -> str:
    """The settings of a user with SCRAM over TLS; `changes` are others of [kafka], and None removes one."""
    kafka: dict[str, object] = {
        "bootstrap_servers": broker.address(listener),
        "security_protocol": LISTENERS[listener],
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": password(user),
        "ssl_cafile": broker.certificates.ca,
        **changes,
    }
    return "".join(f'kafka.{name} = "{value}"\n' for name, value in kafka.items() if value is not None)


async def refusal(cluster: Cluster) -> str:
    """Why a connection is refused, or "" if it is accepted."""
    try:
        async with cluster.connected():
            return ""
    except DependencyError as error:
        return str(error).removeprefix(f"{cluster}: ")


@pytest.mark.nightly
async def test_every_listener_says_at_which_step_it_refuses(broker: SecuredKafka) -> None:
    """Each kind of wrong protocol, certificate and secret is refused; the right ones are accepted."""
    certificates = broker.certificates

    def security(protocol: str, mechanism: str = "PLAIN", secret: str = "", certfile: str | None = None) -> Security:
        files = Tls(certificates.ca, certfile) if "SSL" in protocol else None
        secrets = secret or password("learner")
        if "SASL" not in protocol:
            return Security(protocol, files)
        if mechanism == "OAUTHBEARER":
            tokens = client_credentials(broker.issuer.url, "learner", secrets, None, None)
            return Security(protocol, files, tokens=tokens)
        return Security(protocol, files, mechanism, "learner", secrets)

    look = "see kafka.oauth_client_id, oauth_client_secret and oauth_scope"
    alien = f"TLS: sslv3 alert certificate unknown: {TLS_SETTINGS}"
    elsewhere = f"{UNVERIFIED}Hostname mismatch, certificate is not valid for 'localhost': {TLS_SETTINGS}"
    for listener, config, expected in [
        ("PLAINTEXT", security("SSL"), OTHER_PROTOCOL.format("SSL")),
        ("TLS", security("PLAINTEXT"), OTHER_PROTOCOL.format("PLAINTEXT")),
        ("TLS", security("SSL"), ""),
        ("TLS", Security("SSL", Tls()), UNTRUSTED),  # it trusts the system's authorities
        ("SASL", security("SASL_SSL"), OTHER_PROTOCOL.format("SASL_SSL")),
        *(("SASLTLS", security("SASL_SSL", mechanism), "") for mechanism in MECHANISMS),
        ("SASL", security("SASL_PLAINTEXT", secret="wrong"), f"{FAILED}: Invalid username or password: {SEE_SETTINGS}"),
        ("SASL", security("SASL_PLAINTEXT", "OAUTHBEARER", "wrong"),
         f"SASL: the token endpoint {broker.issuer.url} answers 401: {look}"),
        ("SCRAM", security("SASL_PLAINTEXT"), "SASL: the listener does not know PLAIN: set kafka.sasl_mechanism"),
        ("MTLS", security("SSL", certfile=certificates.client), ""),
        ("MTLS", security("SSL"), f"TLS: tlsv13 alert certificate required: {TLS_SETTINGS}"),
        ("MTLS", security("SSL", certfile=certificates.foreign_client), alien),
        ("EXPIRED", security("SSL"), f"{UNVERIFIED}certificate has expired: {TLS_SETTINGS}"),
        ("ELSEWHERE", security("SSL"), elsewhere),
        ("ELSEWHERE", Security("SSL", Tls(certificates.ca, check_hostname=False)), ""),
    ]:  # fmt: skip
        assert await refusal(Cluster(broker.address(listener), security=config)) == expected, (listener, config)


RIGHT = r"(?P<operations>[\w, ]+) on (?P<resource>TOPIC(\.dead-letters)?|the group)"


def documented_rights() -> dict[str, list[str]]:
    """The rights that docs/security.md lists for each command, as `OPERATION RESOURCE NAME`, with the word TOPIC."""
    block = DOCUMENT.read_text().partition("rights (ACLs)")[2].partition("```text\n")[2].partition("```")[0]
    rights: dict[str, list[str]] = {}
    for line in block.splitlines():
        command, text = re.split(r" {2,}", line, maxsplit=1)
        for match in filter(None, (re.fullmatch(RIGHT, part) for part in text.split("; "))):
            resource = "Group g" if match["resource"] == "the group" else f"Topic {match['resource']}"
            rights.setdefault(command, []).extend(f"{right} {resource}" for right in match["operations"].split(", "))
    return rights


@pytest.mark.nightly
async def test_the_rights_that_are_documented_are_enough_and_none_is_too_many(
    broker: SecuredKafka, redis: Server, topic: str, tmp_path: Path, run: Run
) -> None:
    """Each command works with exactly its rights; without one of them it names that right."""
    await create_both_topics(broker.server, topic)
    rights = {
        command: [right.replace("TOPIC", topic).replace("Group g", f"Group g-{topic}") for right in entries]
        for command, entries in documented_rights().items()
    }
    await broker.allow(*(f"learner {right}" for right in rights["run"]))
    snapshots = "snapshots.keep_every = 0.01\n"
    service = run(snapshots + settings(broker), kafka_address=broker.address("SASLTLS"), create=False).up()
    config = tmp_path / "perceptron.toml"
    common = f'topics = ["{topic}"]\nkafka.group_id = "g-{topic}"\nredis.url = "redis://{redis.address}/0"\n'
    config.write_text(common + settings(broker, user="tool"))
    events = tmp_path / "e.jsonl"
    events.write_bytes(b"\n".join(event({"a": x, "b": -x}, 1 if x > 0 else -1) for x in range(-20, 20)))

    async def expect(arguments: list[str], code: int, words: str) -> None:
        """Run until it ends like this: the broker applies new rights a moment after they were granted."""
        deadline = time.monotonic() + DEADLINE
        while True:
            result = perceptron("-c", str(config), *arguments)
            if result.returncode == code and words in " ".join(result.stdout.split()) + result.stderr:
                return
            assert time.monotonic() < deadline, (arguments, code, words, result)

    async def needs_exactly(command: str, arguments: list[str], words: str = "", failure: int = 3) -> None:
        entries = [f"tool {right}" for right in rights[command]]
        await broker.allow(*entries)
        await expect(arguments, 0, words)
        for right in entries:
            await broker.revoke(right)
            _, operation, kind, name = right.split()
            resource = f"topic {name}" if kind == "Topic" else "the group"
            # DescribeConfigs is only a warning, and `inspect` shows more than the lag.
            code = 0 if operation == "DescribeConfigs" else failure
            operation = "Read" if operation == "Describe" else operation
            await expect(arguments, code, f"authorisation: this user lacks {operation} on {resource}")
            await broker.allow(right)
        await broker.revoke(*entries)

    await needs_exactly("produce", ["produce", str(events)], "sent")
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:
        await producer.send_and_wait(topic, event({"a": 1}, "yes"))
        end = (await producer.send_and_wait(topic, event({"a": 1}, 1))).offset + 1
    assert service.wait_for(end)["rejected"] == {"unknown-label": 1}
    await needs_exactly("run", ["check"])
    await needs_exactly("inspect", ["inspect"], " lag 0 ", failure=0)
    await needs_exactly("verify, fit, suggest", ["verify"], "equal, bit for bit")
    await needs_exactly("verify, fit, suggest", ["fit", "--topic", topic])
    await needs_exactly("dead-letters list, show", ["dead-letters", "list"], f"{topic}-0-{end - 2}")
    config.write_text(f'model.labels = ["no", "yes"]\n{config.read_text()}')  # so that letters are sent
    await needs_exactly("dead-letters retry", ["dead-letters", "retry", "--all"])
    version = service.http.get(f"/v1/models/{topic}/versions").json()["versions"][-1]
    target = ["--to", str(version["version"]), "--resume-at", f"0:{version['next']['0']}", "--yes"]
    await needs_exactly("rollback --resume-at", ["rollback", *target])
    assert service.stop() == 0


def learner_rights(topic: str) -> list[str]:
    """The rights of a process that learns this topic."""
    return [
        f"learner Read Topic {topic}", f"learner Read Group g-{topic}", f"learner Write Topic {topic}.dead-letters"
    ]  # fmt: skip


async def test_a_revoked_right_is_waited_for(broker: SecuredKafka, topic: str, run: Run) -> None:
    """Learning, or saves, wait for the right. Predictions continue, and every event is learned once."""
    await create_both_topics(broker.server, topic)
    rights = learner_rights(topic)
    await broker.allow(*rights)
    service = run(settings(broker), kafka_address=broker.address("SASLTLS"), create=False).up()
    end = rejected = 0
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:

        async def send(*values: bytes) -> None:
            nonlocal end
            for value in values:
                end = (await producer.send_and_wait(topic, value)).offset + 1

        await send(*(event({"a": x}, 1) for x in range(5)))
        service.wait_for(end)
        for right in rights:
            await broker.revoke(right)
            count = service.log.read_text().count("this user lacks")
            _, operation, kind, name = right.split()
            resource = f"topic {name}" if kind == "Topic" else "the group (kafka.group_id)"
            await send(*(event({"a": x}, -1) for x in range(3)), b"no event")
            rejected += 1

            def is_logged(resource: str = resource, operation: str = operation, count: int = count) -> bool:
                assert service.predict({"features": {"a": 1}}).status_code == 200
                text = service.log.read_text()
                return text.count("this user lacks") > count and f"this user lacks {operation} on {resource}" in text

            wait(is_logged, f"{right} is missed")
            await broker.allow(right)
            model = service.wait_for(end)
            assert (model["events"], model["rejected"]) == (end - rejected, {"not-json": rejected}), right
    assert service.process.poll() is None
    assert service.stop() == 0
    assert password("learner") not in service.log.read_text()


@pytest.mark.nightly
async def test_tokens_that_expire_are_renewed_and_nothing_is_lost(broker: SecuredKafka, topic: str, run: Run) -> None:
    """The broker ends each connection after two seconds; the group keeps its member all the time."""
    await create_both_topics(broker.server, topic)
    await broker.allow(*learner_rights(topic))
    broker.issuer.seconds, issued = 3.0, broker.issuer.issued
    config = settings(
        broker, "SASL", sasl_mechanism="OAUTHBEARER", sasl_username=None, sasl_password=None, ssl_cafile=None,
        oauth_token_url=broker.issuer.url, oauth_client_id="learner", oauth_client_secret=password("learner"),
    )  # fmt: skip
    service = run(config, kafka_address=broker.address("SASL"), create=False).up()
    end = 0
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:
        while broker.issuer.issued < issued + 4:
            value = event({"a": end}, 1 if end % 2 else -1) if end % 7 else b"no event"
            end = (await producer.send_and_wait(topic, value)).offset + 1
            service.wait_for(end)
    text = service.log.read_text()
    assert text.count("[info     ] learning ") == 1, text
    assert "no longer learning" not in text
    assert service.stop() == 0


@pytest.mark.nightly
async def test_replaced_credentials_are_used_by_a_process_that_starts(broker: SecuredKafka, tmp_path: Path) -> None:
    """A password, an authority and a client certificate: a running process keeps what it read at its start."""
    certificates, files = broker.certificates, {name: tmp_path / name for name in ("password", "ca", "client")}

    def put(name: str, content: str | Path) -> None:
        files[name].write_text(content if isinstance(content, str) else content.read_text())

    def cluster(listener: str, **options: str) -> Cluster:
        options |= {"bootstrap_servers": broker.address(listener), "ssl_cafile": str(files["ca"])}
        return load(None, {"kafka": options}).kafka.cluster

    def by_password() -> Cluster:
        login = {"sasl_username": "learner", "sasl_password_file": str(files["password"])}
        return cluster("SASLTLS", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **login)

    def by_certificate() -> Cluster:
        return cluster("MTLS", security_protocol="SSL", ssl_certfile=str(files["client"]))

    put("password", f"{password('learner')}\n")
    put("ca", Path(certificates.ca))
    put("client", Path(certificates.client))
    clusters = by_password(), by_certificate()
    put("password", "wrong")
    put("client", Path(certificates.foreign_client))
    assert [await refusal(c) for c in clusters] == ["", ""]
    assert "invalid credentials" in await refusal(by_password())
    assert (await refusal(by_certificate())).endswith(TLS_SETTINGS)
    put("ca", Path(certificates.foreign_ca))
    assert [await refusal(c) for c in (*clusters, by_password(), by_certificate())] == ["", "", UNTRUSTED, UNTRUSTED]
