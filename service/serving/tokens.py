"""Bearer tokens (RFC 6750) of a file, a token a line, so that an old and a new one hold at a time.

The file is read again when it changes.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence

from service.credentials.reread import Reread, text
from service.errors import ConfigurationError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


class Tokens:
    """The tokens of a file; raises ConfigurationError where it has none."""

    def __init__(self, file: str, tell: Callable[[str], object] = lambda _: None) -> None:
        self._file = file
        self._digests = Reread([file], lambda: [_digest(token) for token in self._read()], tell)

    @property
    def first(self) -> str:
        """The one that who asks uses."""
        return self._read()[0]

    def accept(self, token: str) -> bool:
        """Whether this is one of them, in a time that tells nothing of them."""
        asked, found = _digest(token), False
        for digest in self._digests.now:
            found |= hmac.compare_digest(asked, digest)
        return found

    def _read(self) -> Sequence[str]:
        tokens = []
        for number, line in enumerate(text(self._file).splitlines(), 1):
            if token := line.strip():
                if not _TOKEN.fullmatch(token):
                    raise ConfigurationError(
                        f"{self._file}, line {number}: expected a token of 16 to 512 letters, digits and -._~+/"
                    )
                tokens.append(token)
        if not tokens:
            raise ConfigurationError(f"{self._file}: expected a token a line, found none")
        return tokens


def _digest(token: str) -> bytes:
    # Of one length: a comparison would tell that of a token.
    return hashlib.sha256(token.encode()).digest()
