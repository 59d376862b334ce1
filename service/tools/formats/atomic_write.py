"""Files that are written whole or not at all."""

import os
from pathlib import Path

from service.errors import ConfigurationError


def check_output(file: str | None, *, overwrite: bool = True) -> None:
    """Raise ConfigurationError if a file is there already, unless `overwrite`, or if its folder does not exist."""
    if file is not None and not overwrite and Path(file).exists():
        raise ConfigurationError(f"{file} is there already: say --yes to write over it")
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise ConfigurationError(f"{file}: there is no such folder")


def write_atomically(file: str, content: bytes) -> None:
    """Write a file whole or not at all; raises ConfigurationError."""
    # A link stays a link. A pipe or a device such as /dev/null cannot be replaced: it is written to.
    path = Path(file).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}") if path.is_file() or not path.exists() else path
    try:
        with part.open("wb") as out:
            out.write(content)
            out.flush()
            if part != path:
                os.fsync(out.fileno())
        os.replace(part, path)
    except OSError as error:
        if part != path:
            part.unlink(missing_ok=True)
        raise ConfigurationError(f"{file}: {error.strerror}") from None
