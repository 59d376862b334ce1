"""A password, or another secret: as it was set, or what a file says each time it is asked for."""

from typing import NamedTuple

from service.credentials.reread import text
from service.errors import ConfigurationError


class Secret(NamedTuple):
    """The secret `value`; where that is None, the one line of `file`."""

    value: str | None
    file: str | None = None

    def __repr__(self) -> str:
        return f"Secret({self.file or '***'})"

    def now(self) -> str:
        """Raises ConfigurationError that names the file."""
        if self.value is not None:
            return self.value
        assert self.file is not None  # noqa: S101 - one of the two is set
        lines = text(self.file).splitlines()
        if len(lines) != 1 or not lines[0]:
            raise ConfigurationError(
                f"{self.file}: expected one line, the secret; found {len(lines) if any(lines) else 'none'}"
            )
        return lines[0]
