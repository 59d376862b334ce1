"""A real Kafka whose listeners authenticate clients: TLS, client certificates, SASL by each mechanism; and its ACLs.

The listener PLAINTEXT is the broker's own: its clients are the user ANONYMOUS, who has all rights.
"""

import base64
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from service.embedded import servers
from service.embedded.servers import Server
from tests.certificates import Certificates
from tests.conftest import admin

LISTENERS = {"TLS": "SSL", "MTLS": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL"}
ODD = {"EXPIRED": "SSL", "ELSEWHERE": "SSL", "SCRAM": "SASL_PLAINTEXT"}
"""Listeners with an expired certificate, with the certificate of another name, and with a single mechanism."""
MECHANISMS = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
USERS = "learner", "replica", "producer", "tool", "nobody"
RESOURCES = {"Topic": 2, "Group": 3, "Cluster": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
LITERAL, PREFIXED, ALLOW = 3, 4, 3


def password(user: str) -> str:
    """The password of a user, for every mechanism."""
    return f"{user}-secret"


class SecuredKafka(NamedTuple):
    """A broker, with the port of each listener."""

    server: Server
    ports: dict[str, int]
    certificates: Certificates
    issuer: "Issuer"

    def address(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}" if listener in self.ports else self.server.address

    async def allow(self, *rights: str) -> None:
        """Grant rights, each as `USER OPERATION RESOURCE NAME`; a `*` at the end makes the name a prefix."""
        await self._change(CreateAclsRequest, rights)

    async def revoke(self, *rights: str) -> None:
        """Revoke rights that `allow` granted."""
        await self._change(DeleteAclsRequest, rights)

    async def _change(self, request: Any, rights: Iterable[str]) -> None:
        async with admin(self.server) as client:
            for user, operation, resource, name in map(str.split, rights):
                prefixed = name.endswith("*") and name != "*"
                names = (name.rstrip("*"), PREFIXED) if prefixed else (name, LITERAL)
                answer = await client._send_request(
                    request(RESOURCES[resource], *names, f"User:{user}", "*", OPERATIONS[operation], ALLOW)
                )
                assert "error_code=0" in str(answer), answer


class Issuer:
    """A token endpoint (RFC 6749, client credentials) on loopback.

    A client's id is its user. `seconds` is the lifetime of its tokens, `issued` their number so far.
    """

    def __init__(self) -> None:
        self.seconds, self.issued = 3600.0, 0
        issuer = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                user, _, secret = base64.b64decode(self.headers["authorization"].split()[1]).decode().partition(":")
                accepted = form["grant_type"] == ["client_credentials"] and secret == password(user)
                status = 200 if accepted else 401
                body: dict[str, Any] = {"error": "invalid_client", "error_description": "no such client"}
                if status == 200:
                    issuer.issued += 1
                    body = {"access_token": issuer.token(user), "token_type": "Bearer", "expires_in": issuer.seconds}
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            log_message = lambda *_: None  # noqa: E731

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, user: str) -> str:
        """A JSON Web Token without a signature, which Kafka accepts outside production."""
        issued_at = time.time()
        claims = {"sub": user, "iat": issued_at, "exp": issued_at + self.seconds, "scope": "kafka"}
        parts: list[dict[str, Any]] = [{"alg": "none"}, claims]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        return ".".join([*encoded, ""])


@contextmanager
def secured_kafka(folder: Path, certificates: Certificates, extra_lines: Iterable[str] = ()) -> Iterator[SecuredKafka]:
    """Run a Kafka with all listeners, users and the token endpoint; `extra_lines` are further properties."""
    issuer = Issuer()
    protocols = LISTENERS | ODD
    ports = {name: servers.free_port() for name in protocols}
    module = "org.apache.kafka.common.security"
    plain = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
    jaas = {
        "plain": f"{module}.plain.PlainLoginModule required {plain};",
        "scram-sha-256": f"{module}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{module}.scram.ScramLoginModule required;",
        "oauthbearer": f"{module}.oauthbearer.OAuthBearerLoginModule required;",
    }
    lines = [
        f"ssl.keystore.type=PEM\nssl.keystore.location={certificates.server}",
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.ca}",
        "listener.name.mtls.ssl.client.auth=required",
        f"listener.name.expired.ssl.keystore.location={certificates.expired}",
        f"listener.name.elsewhere.ssl.keystore.location={certificates.elsewhere}",
        "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.scram.scram-sha-512.sasl.jaas.config={jaas['scram-sha-512']}",
        "ssl.principal.mapping.rules=RULE:.*CN=([^,]*).*/$1/,DEFAULT",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        *extra_lines,
    ]
    for listener in ("sasl", "sasltls"):
        lines += [f"listener.name.{listener}.{mechanism}.sasl.jaas.config={text}" for mechanism, text in jaas.items()]
    properties = servers.PROPERTIES
    for name, value in (
        ("listeners", "".join(f",{name}://127.0.0.1:{port}" for name, port in ports.items())),
        ("advertised.listeners", "".join(f",{name}://localhost:{port}" for name, port in ports.items())),
        ("listener.security.protocol.map", "".join(f",{name}:{kind}" for name, kind in protocols.items())),
    ):
        properties = "".join(
            f"{line}{value}\n" if line.startswith(f"{name}=") else f"{line}\n" for line in properties.splitlines()
        )
    kinds = "SCRAM-SHA-256", "SCRAM-SHA-512"
    scram = [f"{kind}=[name={user},password={password(user)}]" for kind in kinds for user in USERS]
    with servers.start_kafka(
        folder,
        properties=properties + "\n".join(lines).replace("{", "{{").replace("}", "}}") + "\n",
        format_options=[option for user in scram for option in ("--add-scram", user)],
    ) as server:
        try:
            yield SecuredKafka(server, ports, certificates, issuer)
        finally:
            issuer.close()
