"""A Kafka with authentication: each listener and mechanism, the words of each refusal, rights, new secrets."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.credentials.tls import Tls
from service.embedded.servers import Server
from service.errors import DependencyError
from service.settings.load import load
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.oauth import ClientCredentials
from service.streaming.kafka.security import Security
from tests.certificates import Certificates
from tests.conftest import DEADLINE, Run, create_topic, event, perceptron, wait
from tests.secured import LISTENERS, MECHANISMS, SecuredKafka, password, secured_kafka

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
OTHER = "nothing speaks Kafka over {} there: look at kafka.security_protocol and the port"
TLS_SETTINGS = "look at kafka.ssl_cafile, kafka.ssl_certfile and kafka.ssl_check_hostname"
UNVERIFIED = "TLS: certificate verify failed: "
UNTRUSTED = f"{UNVERIFIED}unable to get local issuer certificate: {TLS_SETTINGS}"
FAILED = "SASL: Authentication failed"
SEE = "see kafka.sasl_mechanism, kafka.sasl_username and its password"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SecuredKafka]:
    folder = tmp_path_factory.mktemp("secured")
    # The broker ends a connection by token after two seconds, unless it authenticates again.
    with secured_kafka(folder, certificates, ["listener.name.sasl.connections.max.reauth.ms=2000"]) as broker:
        yield broker


def settings(broker: SecuredKafka, listener: str = "SASLTLS", user: str = "learner", **more: object) -> str:
    """The settings of a user with SCRAM over TLS; `more` are further ones of [kafka], and None removes one."""
    kafka: dict[str, object] = {
        "bootstrap_servers": broker.address(listener),
        "security_protocol": LISTENERS[listener],
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": password(user),
        "ssl_cafile": broker.certificates.ca,
        **more,
    }
    return "".join(f'kafka.{name} = "{value}"\n' for name, value in kafka.items() if value is not None)


async def said(cluster: Cluster) -> str:
    """Why a connection is refused, or "" if it is accepted."""
    try:
        async with cluster.connected():
            return ""
    except DependencyError as error:
        return str(error).removeprefix(f"{cluster}: ")


@pytest.mark.nightly
async def test_every_listener_says_at_which_step_it_refuses(broker: SecuredKafka) -> None:
    """Each kind of wrong protocol, certificate and secret is refused; the right ones are accepted."""
    own = broker.certificates

    def security(protocol: str, mechanism: str = "PLAIN", secret: str = "", certfile: str | None = None) -> Security:
        files = Tls(own.ca, certfile) if "SSL" in protocol else None
        secrets = secret or password("learner")
        if "SASL" not in protocol:
            return Security(protocol, files)
        if mechanism == "OAUTHBEARER":
            tokens = ClientCredentials(broker.issuer.url, "learner", secrets, None, None)
            return Security(protocol, files, tokens=tokens)
        return Security(protocol, files, mechanism, "learner", secrets)

    look = "see kafka.oauth_client_id, oauth_client_secret and oauth_scope"
    alien = f"TLS: sslv3 alert certificate unknown: {TLS_SETTINGS}"
    elsewhere = f"{UNVERIFIED}Hostname mismatch, certificate is not valid for 'localhost': {TLS_SETTINGS}"
    for listener, how, expected in [
        ("PLAINTEXT", security("SSL"), OTHER.format("SSL")),
        ("TLS", security("PLAINTEXT"), OTHER.format("PLAINTEXT")),
        ("TLS", security("SSL"), ""),
        ("TLS", Security("SSL", Tls()), UNTRUSTED),  # it trusts the system's authorities
        ("SASL", security("SASL_SSL"), OTHER.format("SASL_SSL")),
        *(("SASLTLS", security("SASL_SSL", mechanism), "") for mechanism in MECHANISMS),
        ("SASL", security("SASL_PLAINTEXT", secret="wrong"), f"{FAILED}: Invalid username or password: {SEE}"),
        ("SASL", security("SASL_PLAINTEXT", "OAUTHBEARER", "wrong"),
         f"SASL: the token endpoint {broker.issuer.url} answers 401: {look}"),
        ("SCRAM", security("SASL_PLAINTEXT"), "SASL: the listener does not know PLAIN: set kafka.sasl_mechanism"),
        ("MTLS", security("SSL", certfile=own.client), ""),
        ("MTLS", security("SSL"), f"TLS: tlsv13 alert certificate required: {TLS_SETTINGS}"),
        ("MTLS", security("SSL", certfile=own.foreign_client), alien),
        ("EXPIRED", security("SSL"), f"{UNVERIFIED}certificate has expired: {TLS_SETTINGS}"),
        ("ELSEWHERE", security("SSL"), elsewhere),
        ("ELSEWHERE", Security("SSL", Tls(own.ca, check_hostname=False)), ""),
    ]:  # fmt: skip
        assert await said(Cluster(broker.address(listener), security=how)) == expected, (listener, how)


RIGHT = r"(?P<operations>[\w, ]+) on (?P<resource>TOPIC(\.dead-letters)?|the group)"


def documented() -> dict[str, list[str]]:
    """The rights that docs/security.md lists for each command, as `OPERATION RESOURCE NAME`, with the word TOPIC."""
    block = DOCUMENT.read_text().partition("rights (ACLs)")[2].partition("```text\n")[2].partition("```")[0]
    rights: dict[str, list[str]] = {}
    for line in block.splitlines():
        command, text = re.split(r" {2,}", line, maxsplit=1)
        for match in filter(None, (re.fullmatch(RIGHT, part) for part in text.split("; "))):
            about = "Group g" if match["resource"] == "the group" else f"Topic {match['resource']}"
            rights.setdefault(command, []).extend(f"{right} {about}" for right in match["operations"].split(", "))
    return rights


@pytest.mark.nightly
async def test_the_rights_that_are_documented_are_enough_and_none_is_too_many(
    broker: SecuredKafka, redis: Server, topic: str, tmp_path: Path, run: Run
) -> None:
    """Each command works with exactly its rights; without one of them it names that right."""
    for name in (topic, f"{topic}.dead-letters"):
        await create_topic(broker.server, name)
    rights = {
        command: [right.replace("TOPIC", topic).replace("Group g", f"Group g-{topic}") for right in listed]
        for command, listed in documented().items()
    }
    await broker.allow(*(f"learner {right}" for right in rights["run"]))
    kept = "snapshots.keep_every = 0.01\n"
    service = run(kept + settings(broker), kafka_address=broker.address("SASLTLS"), create=False).up()
    config = tmp_path / "perceptron.toml"
    about = f'topics = ["{topic}"]\nkafka.group_id = "g-{topic}"\nredis.url = "redis://{redis.address}/0"\n'
    config.write_text(about + settings(broker, user="tool"))
    events = tmp_path / "e.jsonl"
    events.write_bytes(b"\n".join(event({"a": x, "b": -x}, 1 if x > 0 else -1) for x in range(-20, 20)))

    async def turns_out(arguments: list[str], code: int, words: str) -> None:
        """Run until it ends so: the broker applies new rights a moment after they were granted."""
        deadline = time.monotonic() + DEADLINE
        while True:
            done = perceptron("-c", str(config), *arguments)
            if done.returncode == code and words in " ".join(done.stdout.split()) + done.stderr:
                return
            assert time.monotonic() < deadline, (arguments, code, words, done)

    async def exactly(command: str, arguments: list[str], words: str = "", lacking: int = 3) -> None:
        needed = [f"tool {right}" for right in rights[command]]
        await broker.allow(*needed)
        await turns_out(arguments, 0, words)
        for right in needed:
            await broker.revoke(right)
            _, operation, kind, name = right.split()
            where = f"topic {name}" if kind == "Topic" else "the group"
            # DescribeConfigs is only a warning, and `inspect` shows more than the lag.
            code = 0 if operation == "DescribeConfigs" else lacking
            operation = "Read" if operation == "Describe" else operation
            await turns_out(arguments, code, f"authorisation: this user lacks {operation} on {where}")
            await broker.allow(right)
        await broker.revoke(*needed)

    await exactly("produce", ["produce", str(events)], "sent")
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:
        await producer.send_and_wait(topic, b"no event")
        sent = (await producer.send_and_wait(topic, event({"a": 1}, 1))).offset + 1
    assert service.wait_for(sent)["rejected"] == {"not-json": 1}
    await exactly("run", ["check"])
    await exactly("inspect", ["inspect"], " lag 0 ", lacking=0)
    await exactly("verify, fit, suggest", ["verify"], "equal, bit for bit")
    await exactly("verify, fit, suggest", ["fit", "--topic", topic])
    await exactly("dead-letters list, show", ["dead-letters", "list"], f"{topic}-0-{sent - 2}")
    await exactly("dead-letters retry", ["dead-letters", "retry", "--all"])
    version = service.http.get(f"/v1/models/{topic}/versions").json()["versions"][-1]
    to = ["--to", str(version["version"]), "--resume-at", f"0:{version['next']['0']}", "--yes"]
    await exactly("rollback --resume-at", ["rollback", *to])
    assert service.stop() == 0


async def test_a_right_that_is_taken_away_is_waited_for(broker: SecuredKafka, topic: str, run: Run) -> None:
    """Learning, or saves, wait for it. Predictions continue, and every event is learned once."""
    letters = f"{topic}.dead-letters"
    for name in (topic, letters):
        await create_topic(broker.server, name)
    needed = [f"learner Read Topic {topic}", f"learner Read Group g-{topic}", f"learner Write Topic {letters}"]
    await broker.allow(*needed)
    service = run(settings(broker), kafka_address=broker.address("SASLTLS"), create=False).up()
    sent = rejected = 0
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:

        async def send(*values: bytes) -> None:
            nonlocal sent
            for value in values:
                sent = (await producer.send_and_wait(topic, value)).offset + 1

        await send(*(event({"a": x}, 1) for x in range(5)))
        service.wait_for(sent)
        for right in needed:
            await broker.revoke(right)
            before = service.log.read_text().count("this user lacks")
            _, operation, kind, name = right.split()
            where = f"topic {name}" if kind == "Topic" else "the group (kafka.group_id)"
            await send(*(event({"a": x}, -1) for x in range(3)), b"no event")
            rejected += 1

            def told(where: str = where, operation: str = operation, before: int = before) -> bool:
                assert service.predict({"features": {"a": 1}}).status_code == 200
                text = service.log.read_text()
                return text.count("this user lacks") > before and f"this user lacks {operation} on {where}" in text

            wait(told, f"{right} is missed")
            await broker.allow(right)
            model = service.wait_for(sent)
            assert (model["events"], model["rejected"]) == (sent - rejected, {"not-json": rejected}), right
    assert service.process.poll() is None
    assert service.stop() == 0
    assert password("learner") not in service.log.read_text()


@pytest.mark.nightly
async def test_tokens_that_end_are_renewed_and_nothing_is_lost(broker: SecuredKafka, topic: str, run: Run) -> None:
    """The broker ends each connection after two seconds; the group keeps its member all the time."""
    for name in (topic, f"{topic}.dead-letters"):
        await create_topic(broker.server, name)
    await broker.allow(
        f"learner Read Topic {topic}", f"learner Read Group g-{topic}", f"learner Write Topic {topic}.dead-letters"
    )
    broker.issuer.seconds, issued = 3.0, broker.issuer.issued
    own = settings(
        broker, "SASL", sasl_mechanism="OAUTHBEARER", sasl_username=None, sasl_password=None, ssl_cafile=None,
        oauth_token_url=broker.issuer.url, oauth_client_id="learner", oauth_client_secret=password("learner"),
    )  # fmt: skip
    service = run(own, kafka_address=broker.address("SASL"), create=False).up()
    sent = 0
    async with AIOKafkaProducer(bootstrap_servers=broker.server.address) as producer:
        while broker.issuer.issued < issued + 4:
            value = event({"a": sent}, 1 if sent % 2 else -1) if sent % 7 else b"no event"
            sent = (await producer.send_and_wait(topic, value)).offset + 1
            service.wait_for(sent)
    text = service.log.read_text()
    assert text.count("[info     ] learning ") == 1, text
    assert "no longer learning" not in text
    assert service.stop() == 0


@pytest.mark.nightly
async def test_what_is_replaced_is_used_by_a_process_that_starts(broker: SecuredKafka, tmp_path: Path) -> None:
    """A password, an authority and a client certificate: a running process keeps what it read at its start."""
    own, files = broker.certificates, {name: tmp_path / name for name in ("password", "ca", "client")}

    def put(name: str, content: str | Path) -> None:
        files[name].write_text(content if isinstance(content, str) else content.read_text())

    def cluster(listener: str, **more: str) -> Cluster:
        more |= {"bootstrap_servers": broker.address(listener), "ssl_cafile": str(files["ca"])}
        return load(None, {"kafka": more}).kafka.cluster

    def by_password() -> Cluster:
        login = {"sasl_username": "learner", "sasl_password_file": str(files["password"])}
        return cluster("SASLTLS", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **login)

    def by_certificate() -> Cluster:
        return cluster("MTLS", security_protocol="SSL", ssl_certfile=str(files["client"]))

    put("password", f"{password('learner')}\n")
    put("ca", Path(own.ca))
    put("client", Path(own.client))
    running = by_password(), by_certificate()
    put("password", "wrong")
    put("client", Path(own.foreign_client))
    assert [await said(each) for each in running] == ["", ""]
    assert "invalid credentials" in await said(by_password())
    assert (await said(by_certificate())).endswith(TLS_SETTINGS)
    put("ca", Path(own.foreign_ca))
    assert [await said(each) for each in (*running, by_password(), by_certificate())] == ["", "", UNTRUSTED, UNTRUSTED]
