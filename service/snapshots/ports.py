"""Interfaces that keeping snapshots needs: time, another thread, and a store. With them a test can step every await."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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


class Store(Protocol):
    """A store of snapshots.

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


class DigestReader(Store, Protocol):
    """A store that is asked for many models in one command."""

    async def digests(self, models: Sequence[str]) -> list[str | None]:
        """Each model's `digest`, all of one moment; None if something else is under its key."""


class KeptStore(Store, Protocol):
    """A store that also reads kept versions."""

    async def kept(self, model: str, versions: Iterable[int]) -> list[bytes]:
        """The heads of the kept versions that the store has."""
