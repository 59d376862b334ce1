"""Bearer tokens (RFC 6750) of a file, a token a line, so that an old and a new one hold at a time.

The file is read again when it changes.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from service.errors import ConfigurationError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


class Tokens:
    """The tokens of a file; raises ConfigurationError where it has none."""

    def __init__(self, file: str, tell: Callable[[str], object] = lambda _: None) -> None:
        self._file, self._tell = Path(file), tell
        self._seen, self._told = self._stamp(), ""
        self._digests = [_digest(token) for token in self._read()]

    @property
    def first(self) -> str:
        """The one that who asks uses."""
        return self._read()[0]

    def accept(self, token: str) -> bool:
        """Whether this is one of them, in a time that tells nothing of them."""
        self._look_again()
        asked, found = _digest(token), False
        for digest in self._digests:
            found |= hmac.compare_digest(asked, digest)
        return found

    def _look_again(self) -> None:
        """Take in what the file has now; where that is nothing, say so once and keep what it had."""
        try:
            if (stamp := self._stamp()) == self._seen:
                return
            self._seen = stamp
            self._digests, self._told = [_digest(token) for token in self._read()], ""
        except ConfigurationError as error:
            if str(error) != self._told:
                self._tell(f"{error}; the tokens before hold on")
            self._told = str(error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError as error:
            raise ConfigurationError(f"{self._file}: {error.strerror}") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Sequence[str]:
        try:
            lines = self._file.read_text("ascii").splitlines()
        except OSError as error:
            raise ConfigurationError(f"{self._file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._file}: expected tokens of ASCII letters, digits and -._~+/") from None
        tokens = []
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                if not _TOKEN.fullmatch(text):
                    raise ConfigurationError(
                        f"{self._file}, line {number}: expected a token of 16 to 512 letters, digits and -._~+/"
                    )
                tokens.append(text)
        if not tokens:
            raise ConfigurationError(f"{self._file}: expected a token a line, found none")
        return tokens


def _digest(token: str) -> bytes:
    # Of one length: a comparison would tell that of a token.
    return hashlib.sha256(token.encode()).digest()
