"""What files say, read again when one of them changes: secrets and certificates are replaced without a restart."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from service.errors import ConfigurationError, os_cause

T = TypeVar("T")


class Reread(Generic[T]):
    """What `read` makes of these files; raises what it raises, which is ConfigurationError."""

    def __init__(self, files: Sequence[str], read: Callable[[], T], tell: Callable[[str], object]) -> None:
        self._files, self._read, self._tell = files, read, tell
        self._seen, self._told = self._stamps(), ""
        self._found = read()

    @property
    def now(self) -> T:
        """As the files are now. Where they then say nothing that holds: as before, and `tell` hears so once."""
        try:
            if (stamps := self._stamps()) != self._seen:
                self._found, self._told = self._read(), ""
                self._seen = stamps  # only now: what may be read a moment later has the same stamps
        except ConfigurationError as error:
            if str(error) != self._told:
                self._tell(f"{error}; what it said before holds on")
            self._told = str(error)
        return self._found

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(file) for file in self._files]


def _stamp(file: str) -> tuple[int, int, int]:
    try:
        found = os.stat(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: {os_cause(error)}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def text(file: str) -> str:
    """What a file says; raises ConfigurationError that names it, and nothing of what it says."""
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {os_cause(error)}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: expected text in UTF-8") from None
