"""Snapshots of every release are restored bit for bit; those of a newer one are refused, never dropped."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service import __version__
from service.errors import SnapshotForeign
from service.learning.identity import FOLD
from service.learning.records import Records
from service.snapshots import codec
from service.snapshots import head as heads
from service.snapshots.head import SCHEMA, UNKNOWN_WRITER
from service.snapshots.keeper import AcceptedSave
from tests import releases
from tests.saving import keeper, simulated_store

FILES = sorted(releases.HERE.glob("*.json"))
STORED = [(file, name) for file in FILES for name in json.loads(file.read_text())]


def read(file: Path, name: str) -> tuple[dict[str, bytes], str]:
    """The fields of a model as a release left them, and its state digest."""
    said = json.loads(file.read_text())[name]
    return {field: base64.b64decode(value) for field, value in said["fields"].items()}, said["state_digest"]


def test_this_release_has_its_file_and_its_row() -> None:
    assert releases.HERE / f"{__version__}.json" in FILES
    guarantees = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \| (\d+) \|", guarantees, re.MULTILINE)
    assert [row[0] for row in rows] == [file.stem for file in FILES]
    assert rows[-1] == (__version__, str(SCHEMA), str(FOLD))


def fold(file: Path, name: str) -> int:
    said: int = json.loads(read(file, name)[0]["head"])["identity"]["fold"]
    return said


OURS = [stored for stored in STORED if fold(*stored) == FOLD]
OTHERS = [stored for stored in STORED if stored not in OURS]


@pytest.mark.parametrize(("file", "name"), OTHERS, ids=lambda x: x if isinstance(x, str) else x.stem)
async def test_what_another_fold_learned_is_refused_with_the_ways_out(file: Path, name: str) -> None:
    fields, _ = read(file, name)
    store, redis = simulated_store(dict(fields))
    said = f"older release, to which records mean something else .it has fold {fold(file, name)}, this one {FOLD}."
    with pytest.raises(SnapshotForeign, match=f"{said}: run that release, or .* `perceptron reset -t m --yes`"):
        await keeper(store, "m").restore()
    assert redis.state == fields


@pytest.mark.parametrize(("file", "name"), OURS, ids=lambda x: x if isinstance(x, str) else x.stem)
async def test_what_a_release_stored_is_restored_and_gone_on_with(file: Path, name: str) -> None:
    fields, digest = read(file, name)
    store, redis = simulated_store(fields)
    ours = keeper(store, "m")
    learner = await ours.restore()
    assert learner is not None
    assert ours.head is not None
    assert heads.snapshot_content(learner).head.state_digest == ours.head.state_digest == digest
    assert ours.head.kept
    assert ours.head.run_blobs or ours.head.runs
    for version in ours.head.kept:
        data = redis.state[f"v:{version.version}"]
        codec.decode_head(data, hashlib.sha256(data).hexdigest())
    learner.apply(0, Records.of(learner.next[0], releases.events(learner.identity)[:3]))
    saved = await ours.save(learner, {}, ours.head.source)
    assert isinstance(saved, AcceptedSave)
    again = await keeper(store, "m").restore()
    assert again is not None
    assert heads.snapshot_content(again).head.state_digest == heads.snapshot_content(learner).head.state_digest


async def test_this_release_stores_what_its_file_has() -> None:
    """This release still writes the same bytes: a release that does not needs another number and another file."""
    for name, identity in releases.IDENTITIES.items():
        fields, digest = await releases.stored(identity)
        before, known = read(releases.HERE / f"{__version__}.json", name)
        if identity.rule != "logistic-delta":  # whose exp may differ between machines
            assert digest == known
        assert shape(json.loads(fields["head"])) == shape(json.loads(before["head"]))


def shape(value: Any) -> Any:
    """A head without its values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every object in a head, but those whose members are names of its own: partitions, reasons, arrays."""
    found = [path] if isinstance(value, dict) and (not path or path[-1] not in OWN) else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*found, *(place for name, more in inner for place in places(more, (*path, name)))]


OWN = ("next", "covered", "rejected", "arrays")


def changed(said: Any, path: tuple[str | int, ...], name: str, value: Any) -> tuple[bytes, str]:
    """The head with this member, and its digest."""
    said = json.loads(json.dumps(said))
    place = said
    for step in path:
        place = place[step]
    place[name] = value
    data = json.dumps(said).encode()
    return data, hashlib.sha256(data).hexdigest()


def test_what_is_not_known_is_refused_wherever_it_stands() -> None:
    fields, _ = read(FILES[-1], "named")
    said = json.loads(fields["head"])
    where = places(said)
    assert {p[-1] for p in where if p} >= {"identity", "source", "writer", "counts", "observations", "fingerprint", "w"}
    newer: list[tuple[tuple[str | int, ...], str, Any]] = [
        (path, "later", value) for path in where for value in (None, 1)
    ]
    newer += [((), "schema", SCHEMA + 1), (("identity",), "fold", FOLD + 1), (("identity",), "rule", "later")]
    newer += [(("arrays",), "later", {"base": [], "deltas": []}), ((), "order", "later")]
    for path, name, value in newer:
        data, digest = changed(said, path, name, value)
        with pytest.raises(SnapshotForeign, match="written by a newer release, run that one") as refused:
            codec.readable("m", digest, data)
        assert "reset" not in str(refused.value)
        assert "rollback" not in str(refused.value)
    # In a newer schema everything may be different.
    for data in (b'{"schema":2}', b"\xff"):
        with pytest.raises(SnapshotForeign):
            codec.decode_head(data, hashlib.sha256(data).hexdigest())


def test_a_head_from_before_a_member_was_added_is_read() -> None:
    fields, _ = read(FILES[-1], "named")
    said = json.loads(fields["head"])
    del said["writer"], said["observations"]["pairs"], said["observations"]["averaged_missed"]
    data = json.dumps(said).encode()
    head = codec.decode_head(data, hashlib.sha256(data).hexdigest())
    seen = head.observations
    assert (head.writer, seen.pairs, seen.averaged_missed) == (UNKNOWN_WRITER, [], None)


def test_a_kept_version_of_a_newer_release_is_left_out() -> None:
    fields, _ = read(FILES[-1], "named")
    head = codec.decode_head(fields["head"], fields["digest"].decode())
    last = head.kept[-1]
    data, digest = changed(json.loads(fields[f"v:{last.version}"]), (), "later", None)
    other = msgspec.structs.replace(head, kept=[*head.kept[:-1], msgspec.structs.replace(last, digest=digest)])
    kept = [fields[f"v:{v.version}"] for v in head.kept]
    assert len(codec.kept_versions(head, fields["digest"].decode(), kept)) == len(kept)
    assert len(codec.kept_versions(other, "", [*kept[:-1], data])) == len(kept) - 1
