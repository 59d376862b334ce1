"""A head's bytes: written, and read whole or not at all. What is damaged is told from what a newer release wrote."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

import msgspec

from service.errors import SnapshotDamaged, SnapshotNewer
from service.learning.identity import FOLD
from service.snapshots import blobs
from service.snapshots.head import SCHEMA, Head


class _Release(msgspec.Struct):
    """What a head of any release has."""

    schema: Annotated[int, msgspec.Meta(ge=1)]


_decoder, _any_release = msgspec.json.Decoder(Head), msgspec.json.Decoder(_Release)


def encode(head: Head) -> bytes:
    """A head's bytes; their SHA-256 names it."""
    return msgspec.json.encode(head)


def decode(data: bytes, digest: str) -> Head:
    """The head with this digest.

    Raises SnapshotDamaged when the bytes are not those, or no head; SnapshotNewer when they are, and what they say is
    not all known here: what was not read would be gone with the next save.
    """
    if blobs.digest(data) != digest:
        raise SnapshotDamaged(f"the head's bytes do not match their digest {digest[:12]}")
    try:
        schema = _any_release.decode(data).schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotDamaged(f"head {digest[:12]} does not decode: {error}") from error
    if schema > SCHEMA:
        raise _newer(digest, f"it has schema {schema}, this one reads {SCHEMA}")
    try:
        head = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _newer(digest, str(error)) from error
    if head.identity.fold > FOLD:
        raise _newer(digest, f"it has fold {head.identity.fold}, this one knows {FOLD}")
    if head.arrays.keys() != set(head.identity.arrays):
        raise _newer(
            digest, f"it has arrays {', '.join(head.arrays)}, this one knows {', '.join(head.identity.arrays)}"
        )
    return head


def _newer(digest: str, what: str) -> SnapshotNewer:
    return SnapshotNewer(f"head {digest[:12]} was written by a newer release, run that one ({what})")


def damaged(model: str, what: str) -> SnapshotDamaged:
    """What to say of a model that has no head to read, so that no rollback helps."""
    return SnapshotDamaged(
        f"model {model}: {what}: give Redis back a copy of its data, or begin anew with `perceptron reset -t {model} "
        "--yes`"
    )


def kept(head: Head, digest: str, found: Iterable[bytes]) -> list[tuple[str, Head]]:
    """The kept versions of this head, each under its digest, out of their stored bytes; anything else is left out."""
    digests = {k.digest or digest for k in head.kept}
    there = list[tuple[str, Head]]()
    for data in found:
        if (name := blobs.digest(data)) in digests:
            with suppress(SnapshotDamaged, SnapshotNewer):
                there.append((name, decode(data, name)))
    return there


def readable(model: str, digest: str, data: bytes) -> Head:
    """The model's current head, from the store; raises SnapshotDamaged and SnapshotNewer, naming the model."""
    try:
        return decode(data, digest)
    except SnapshotDamaged as error:
        raise damaged(model, str(error)) from error
    except SnapshotNewer as error:
        raise SnapshotNewer(f"model {model}: {error}") from error
