"""Interfaces that keeping snapshots needs: time, another thread, and a store. With them a test can step every await."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol

Verdict = Literal["OK", "CONFLICT", "MISSING"]


class Clock(Protocol):
    """Time, for all code that the simulator runs too."""

    def now(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for at least this long; 0 waits for a turn of the event loop that no other sleep(0) shares."""


def before_reset(model: str) -> str:
    """The name of what a model was before a reset. It answers until the model has been learned again."""
    return f"{model}.before-reset"


Offload = Callable[..., Awaitable[Any]]
"""`await offload(function, *arguments)`: a thread in the service, a plain call in a test."""


class Commit(NamedTuple):
    """A head to make the current one, and the other arguments of commit.lua."""

    parent: str
    digest: str
    head: bytes
    refs: Sequence[str]
    """The digest of every blob that the head refers to."""
    keep: str = ""
    """The version to keep the head as, or ''."""
    evict: str = ""
    """The kept version to remove, or ''."""
    blobs: Mapping[str, bytes] = {}
    """The blobs that are uploaded with the head."""


class ModelStore(Protocol):
    """The methods of a store that learning needs. The simulator's store has only these.

    Every method raises DependencyError if the store cannot be reached, and SnapshotDamaged if it holds something else
    under the model's key.
    """

    missing_since: float
    """Since when the store does not answer (seconds since 1970); 0 while it answers."""

    async def digest(self, model: str) -> str:
        """The digest of the current head, or ''. Raises what `head` raises if there is no digest."""

    async def head(self, model: str) -> tuple[str, bytes] | None:
        """Digest and bytes of the current head, of one moment. Raises SnapshotDamaged if one of them is missing."""

    async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:
        """The blobs that the store has, by digest."""

    async def put(self, model: str, blobs: dict[str, bytes]) -> None:
        """Upload blobs. It may take them out of `blobs` one by one: to free a gigabyte at once holds the event loop."""

    async def commit(self, model: str, new: Commit) -> Verdict:
        """Make a head the current one if its parent is the current one; see commit.lua."""

    async def required_identity(self, model: str) -> bytes | None:
        """The identity, as JSON, that a reset requires of the model's next first head; None if it may have any."""


class Store(ModelStore, AbstractAsyncContextManager["Store"], Protocol):
    """A store of snapshots, with all that the service and the commands use. As a context manager it closes itself."""

    failure: str
    """Why the last command failed; "" if it did not."""

    @property
    def address(self) -> str:
        """Its address without credentials, for messages."""

    async def check(self, learn: bool = True) -> list[str]:
        """Warnings, a line each. Raises ConfigurationError if the store is unfit to read, or with `learn` to write."""

    async def look(self, models: Sequence[str]) -> tuple[list[str | None], dict[str, str]]:
        """Each model's `digest`, None if something else is under its key, and the model that answers for each alias.

        All are of one moment, by one command.
        """

    async def kept(self, model: str, versions: Iterable[int]) -> list[bytes]:
        """The heads of the kept versions that the store has."""

    async def models(self) -> list[str]:
        """The names of all models that have a snapshot."""

    async def set_alias(self, alias: str, model: str) -> None:
        """Let a model answer for an alias; an alias of itself is removed. What it was before a reset is forgotten."""

    async def reset(self, model: str, identity: bytes, keep: bool) -> None:
        """Forget a model: head, kept versions, blobs. With an identity, only a head that has it can be the next one.

        `keep` renames the model to `before_reset` of its name, and makes this an alias.
        """
