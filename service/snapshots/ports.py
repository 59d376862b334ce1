"""What keeping snapshots needs of the world: time, another thread, and a store; so that a test can step every await."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

Verdict = Literal["OK", "CONFLICT", "MISSING"]


class Clock(Protocol):
    """Time, as far as anything that is simulated may see it."""

    def now(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for at least this long; 0 is one turn, which nobody else has who sleeps for 0."""


Offload = Callable[..., Awaitable[Any]]
"""`await offload(function, *arguments)`: a thread in the service, a plain call in a test."""


class Commit(NamedTuple):
    """A head that is to be the current one, with what commit.lua is told of it."""

    parent: str
    digest: str
    head: bytes
    refs: Sequence[str]
    """The digest of every blob that it refers to."""
    keep: str = ""
    """The version to keep it as, or ''."""
    evict: str = ""
    """The kept version that goes, or ''."""
    blobs: Mapping[str, bytes] = MappingProxyType({})
    """Those that are uploaded with it."""


class Store(Protocol):
    """What the keeper needs.

    Every method raises DependencyError when the store cannot be reached, and SnapshotDamaged where it holds something
    else under the model's key.
    """

    missing_since: float
    """Since when it does not answer (seconds since 1970); 0 while it does."""

    async def digest(self, model: str) -> str:
        """The digest of the current head, or ''; as `head`, where there is none."""

    async def head(self, model: str) -> tuple[str, bytes] | None:
        """Digest and bytes of the current head, of one moment. Raises SnapshotDamaged where one of them is missing."""

    async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:
        """The blobs that are there, by digest."""

    async def put(self, model: str, blobs: dict[str, bytes]) -> None:
        """Upload blobs. It may take them out of `blobs` one by one: to free a gigabyte at once holds the event loop."""

    async def commit(self, model: str, new: Commit) -> Verdict:
        """Make a head the current one if its parent is; see commit.lua."""


class Looking(Store, Protocol):
    """A store that is looked at for many models in one command."""

    async def digests(self, models: Sequence[str]) -> list[str | None]:
        """Each model's `digest`, all of one moment; None where something else is under its key."""


class KeptStore(Store, Protocol):
    """A store that also reads what it keeps."""

    async def kept(self, model: str, versions: Iterable[int]) -> list[bytes]:
        """The heads of kept versions, as far as they are there."""
