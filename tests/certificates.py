"""TLS certificates for tests, newly issued in each run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from trustme import CA


class Certificates(NamedTuple):
    """Paths of PEM files. A leaf's file holds its key (PKCS#8) and its chain; `parts` returns them as two files."""

    ca: str
    foreign_ca: str
    server: str
    """For localhost and 127.0.0.1."""
    expired: str
    """As `server`, but expired in 2001."""
    elsewhere: str
    """For elsewhere.example."""
    client: str
    foreign_client: str

    @staticmethod
    def parts(leaf: str) -> tuple[str, str]:
        """The paths of the leaf's chain and of its key."""
        return f"{leaf}.crt", f"{leaf}.key"


def make(folder: Path) -> Certificates:
    """Create two certificate authorities, and leaves signed by each."""
    ours, foreign = CA(organization_name="own"), CA(organization_name="foreign")
    hosts = "localhost", "127.0.0.1"
    contents = {"ca": ours.cert_pem.bytes(), "foreign_ca": foreign.cert_pem.bytes()}
    for name, leaf in {
        "server": ours.issue_cert(*hosts),
        "expired": ours.issue_cert(*hosts, not_after=datetime(2001, 1, 1, tzinfo=UTC)),
        "elsewhere": ours.issue_cert("elsewhere.example"),
        "client": ours.issue_cert("perceptron", common_name="perceptron"),
        "foreign_client": foreign.issue_cert("perceptron", common_name="perceptron"),
    }.items():
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        contents[f"{name}.pem.key"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        contents[f"{name}.pem.crt"] = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        contents[name] = contents[f"{name}.pem.key"] + contents[f"{name}.pem.crt"]
    files = {name: folder / (name if "." in name else f"{name}.pem") for name in contents}
    for name, file in files.items():
        file.write_bytes(contents[name])
    return Certificates(*(str(files[field]) for field in Certificates._fields))
