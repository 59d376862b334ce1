"""Bearer tokens (RFC 6750): the files that list them, and the token of a request."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from typing import Any

from service.credentials.reloading import Reloaded, read_text
from service.errors import ConfigurationError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


class BearerTokens:
    """The tokens of a file, one a line, so that an old and a new one can be valid at the same time.

    The file is read again when it changes. Raises ConfigurationError if it has no token.
    """

    def __init__(self, file: str, logger: Any = None) -> None:
        self._file = file
        self._digests = Reloaded([file], lambda: [_digest(token) for token in self._read()], logger)

    @property
    def first(self) -> str:
        """The first token, which our own commands send."""
        return self._read()[0]

    def accept(self, token: str) -> bool:
        """Whether this token is valid. The time that this takes does not depend on the tokens."""
        digest = _digest(token)
        matches = [hmac.compare_digest(digest, valid) for valid in self._digests.now]
        return any(matches)

    def _read(self) -> Sequence[str]:
        lines = [line.strip() for line in read_text(self._file).splitlines()]
        for number, line in enumerate(lines, 1):
            if line and not _TOKEN.fullmatch(line):
                where = f"{self._file}, line {number}"
                raise ConfigurationError(f"{where}: expected a token of 16 to 512 letters, digits and -._~+/")
        if not any(lines):
            raise ConfigurationError(f"{self._file}: expected a token a line, found none")
        return [line for line in lines if line]


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of a request; empty if it has no token, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _digest(token: str) -> bytes:
    # Digests have the same length; comparing tokens would reveal their length.
    return hashlib.sha256(token.encode()).digest()
