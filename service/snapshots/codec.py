"""A head's bytes: written, and read whole or not at all. What is damaged is told from what is another release's."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

import msgspec

from service.errors import SnapshotDamaged, SnapshotForeign
from service.learning.candidates import arrays_of, stored_as
from service.learning.classifier import Counts
from service.learning.identity import FOLD, MAX_COLUMNS, OF_A_CANDIDATE, Identity
from service.snapshots import blobs
from service.snapshots.head import SCHEMA, Head, Observations


class _Release(msgspec.Struct):
    """What a head of any release has."""

    schema: Annotated[int, msgspec.Meta(ge=1)]


_decoder, _any_release = msgspec.json.Decoder(Head), msgspec.json.Decoder(_Release)


def encode(head: Head) -> bytes:
    """A head's bytes; their SHA-256 names it."""
    return msgspec.json.encode(head)


def decode(data: bytes, digest: str) -> Head:
    """The head with this digest.

    Raises SnapshotDamaged when the bytes are not those, or no head; SnapshotForeign when they are, and what they say is
    not all known here (what was not read would be gone with the next save) or is of another fold.
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
    if head.identity.fold < FOLD:
        raise SnapshotForeign(
            f"head {digest[:12]} was learned by an older release, to which records mean something else (it has fold "
            f"{head.identity.fold}, this one {FOLD}): run that release, or learn the log again with `perceptron reset "
            f"-t {head.model} --yes`"
        )
    beside = [stored_as(name, array) for name, one in head.beside.items() for array in arrays_of(one.identity)]
    if head.arrays.keys() != (known := {*head.identity.arrays, *beside}):
        raise _newer(digest, f"it has arrays {', '.join(head.arrays)}, this one knows {', '.join(sorted(known))}")
    if what := _senseless(head):
        raise SnapshotDamaged(f"head {digest[:12]} makes no sense: {what}")
    return head


def _senseless(head: Head) -> str | None:
    """What a head says that no learner can have: its bytes are those that were written, but not by one."""
    identity = head.identity
    for partition, ranges in head.covered.items():
        if not re.fullmatch(r"0|[1-9]\d{0,9}", partition):
            return f"'{partition}' is no partition"
        edges = [edge for both in ranges for edge in both]
        if not edges or edges[0] < 0 or edges != sorted(edges):
            return f"the covered ranges of partition {partition} do not follow on each other"
    if {p: at.offset for p, at in head.next.items()} != {p: ranges[-1][1] for p, ranges in head.covered.items()}:
        return "it goes on elsewhere than where its covered records end"
    hashed = 1 << max(0, min(identity.bits or 0, 30))
    own = {"named": head.columns - 1, "positional": identity.dimension, "hashed": hashed}[identity.features]
    if head.columns - 1 != own or not 0 <= own <= MAX_COLUMNS:
        return f"it has {head.columns} columns"
    if what := _impossible(identity, head.counts, head.observations):
        return what
    for name, one in head.beside.items():
        if (
            msgspec.structs.replace(identity, **{member: getattr(one.identity, member) for member in OF_A_CANDIDATE})
            != one.identity
        ):
            return f"its candidate {name} learns from other events"
        if one.since.keys() != head.covered.keys() or any(at < 0 for at in one.since.values()):
            return f"its candidate {name} began elsewhere than in its partitions"
        if what := _impossible(one.identity, one.counts, one.observations):
            return f"of its candidate {name} {what}"
    return None


def _impossible(identity: Identity, counts: Counts, seen: Observations) -> str | None:
    """The same of what was learned and seen, of a model or a candidate."""
    if [len(row) for row in counts.confusion] != [identity.classes] * identity.classes:
        return f"its confusion is no table of {identity.classes} labels"
    if (identity.average == "recent") != (identity.half_life is not None):
        return f"its average has a half-life of {identity.half_life}"
    flags = [seen.recent_wrong, *filter(None, (seen.recent_positive, seen.recent_averaged))]
    if seen.recent_events < 0 or any(
        len(bits) != 2 * -(-seen.recent_events // 8) or re.search("[^0-9a-f]", bits) for bits in flags
    ):
        return f"its recent window is not one of {seen.recent_events} events"
    if not re.fullmatch(rf"([0-9a-f]{{4}}){{{seen.recent_events if identity.multiclass else 0}}}", seen.recent_truth):
        return f"its recent labels are not those of {seen.recent_events} events"
    missed = seen.averaged_missed
    if missed is not None and (len(missed) if isinstance(missed, list) else 2) != identity.classes:
        return f"its average's wrong predictions are not of {identity.classes} labels"
    missed = missed if isinstance(missed, list) else [missed or 0]
    if min(missed) < 0 or not sum(missed) <= seen.averaged.wrong <= seen.averaged.events:
        return "its average was wrong more often than it was asked"
    if any(min(p.first_only, p.second_only) < 0 or p.first_only + p.second_only > p.events for p in seen.pairs):
        return "two of its predictors differ more often than they were asked"
    return None


def _newer(digest: str, what: str) -> SnapshotForeign:
    return SnapshotForeign(f"head {digest[:12]} was written by a newer release, run that one ({what})")


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
            with suppress(SnapshotDamaged, SnapshotForeign):
                there.append((name, decode(data, name)))
    return there


def readable(model: str, digest: str, data: bytes) -> Head:
    """The model's current head, from the store; raises SnapshotDamaged and SnapshotForeign, naming the model."""
    try:
        return decode(data, digest)
    except SnapshotDamaged as error:
        raise damaged(model, str(error)) from error
    except SnapshotForeign as error:
        raise SnapshotForeign(f"model {model}: {error}") from error
