"""Heads to bytes and back: a head is read whole or not at all. Damage and heads of other releases are told apart."""

from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter

import msgspec

from service.errors import SnapshotDamaged, SnapshotForeign
from service.learning.classifier import stored_as
from service.learning.identity import FOLD, Identity
from service.learning.records import PartitionId
from service.snapshots import blobs
from service.snapshots.head import SCHEMA, Head

_decoder = msgspec.json.Decoder(Head, dec_hook=lambda _, stored: PartitionId.from_text(str(stored)))


def encode_head(head: Head) -> bytes:
    """A head's bytes. Their SHA-256 is its name."""
    return msgspec.json.encode(head, enc_hook=attrgetter("as_json"))


def decode_head(data: bytes, digest: str) -> Head:
    """The head with this digest.

    Raises SnapshotDamaged if the bytes do not match the digest. Raises SnapshotForeign if the head is of another fold,
    or has members that this release does not know: the next save would drop them.
    """
    if blobs.digest(data) != digest:
        raise SnapshotDamaged(f"the head's bytes do not match their digest {digest[:12]}")
    try:
        head = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _newer(digest, str(error)) from error
    if head.schema > SCHEMA:
        raise _newer(digest, f"it has schema {head.schema}, this release reads {SCHEMA}")
    if head.identity.fold > FOLD:
        raise _newer(digest, f"it has fold {head.identity.fold}, this release knows {FOLD}")
    if head.identity.fold < FOLD:
        raise SnapshotForeign(
            f"head {digest[:12]} was learned by an older release, to which records mean something else (it has fold "
            f"{head.identity.fold}, this one {FOLD}): run that release, or learn the log again with `perceptron reset "
            f"-m {head.model} --yes`"
        )
    extra = [stored_as(n, array) for n, c in head.candidate_states.items() for array in c.identity.weight_arrays]
    if head.arrays.keys() != (expected := {*head.identity.arrays, *extra}):
        raise _newer(digest, f"it has arrays {', '.join(head.arrays)}, expected {', '.join(sorted(expected))}")
    return head


def decode_identity(data: bytes | None) -> Identity | None:
    """The identity with these bytes, if there are any; raises SnapshotForeign."""
    try:
        return msgspec.json.decode(data, type=Identity) if data else None
    except msgspec.DecodeError as error:
        raise SnapshotForeign(f"a newer release reset the model ({error}): run that release") from error


def _newer(digest: str, why: str) -> SnapshotForeign:
    return SnapshotForeign(f"head {digest[:12]} was written by a newer release ({why}): run that release")


def damaged(model: str, what: str) -> SnapshotDamaged:
    """The error of a model whose head cannot be read, so that no rollback helps."""
    return SnapshotDamaged(f"model {model}: {what}: restore Redis from a copy, or `perceptron reset -m {model} --yes`")


def kept_versions(head: Head, digest: str, stored: Iterable[bytes]) -> list[tuple[str, Head]]:
    """The kept versions of this head, with their digests, from their stored bytes. Other bytes are left out."""
    digests = {k.digest for k in head.kept_by(digest)}
    versions = list[tuple[str, Head]]()
    for data in stored:
        if (name := blobs.digest(data)) in digests:
            with suppress(SnapshotForeign):
                versions.append((name, decode_head(data, name)))
    return versions


def readable(model: str, digest: str, data: bytes) -> Head:
    """The model's current head from the store's bytes; raises SnapshotDamaged and SnapshotForeign, naming the model."""
    try:
        return decode_head(data, digest)
    except SnapshotDamaged as error:
        raise damaged(model, str(error)) from error
    except SnapshotForeign as error:
        raise SnapshotForeign(f"model {model}: {error}") from error
