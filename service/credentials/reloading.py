"""Values that are read again when their files change: bearer tokens and the HTTP certificate need no restart."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from service.errors import ConfigurationError, os_cause

T = TypeVar("T")


class Reloaded(Generic[T]):
    """The result of `read`, which reads these files. It is called again when a file has changed."""

    def __init__(self, files: Sequence[str], read: Callable[[], T], logger: Any) -> None:
        """Raises ConfigurationError if `read` does. Later `logger` gets that error, if it is not None."""
        self._files, self._read, self._logger = files, read, logger
        self._stamps, self._value = [*map(_stamp, files)], read()

    @property
    def now(self) -> T:
        """The result for the files as they are now, or the last one if they cannot be used."""
        if (stamps := [*map(_stamp, self._files)]) != self._stamps:
            self._stamps = stamps
            try:
                self._value = self._read()
            except ConfigurationError as error:
                if self._logger is not None:
                    self._logger.warning(f"{error}; the previous content stays in use")
        return self._value


def _stamp(file: str) -> tuple[int, int, int] | None:
    """A value that changes with the file and with its rights; None if the file cannot be looked at."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def read_text(file: str) -> str:
    """The text of a file; raises ConfigurationError that names the file and shows nothing of its text."""
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {os_cause(error)}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: expected text in UTF-8") from None
