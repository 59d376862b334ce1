"""Snapshots of every release are restored bit for bit; snapshots of a newer release are refused, never dropped."""

import base64
import hashlib
import json
import re
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service import __version__
from service.errors import SnapshotForeign
from service.learning.identity import FOLD
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.content import snapshot_content
from service.snapshots.head import SCHEMA, UNKNOWN_WRITER, Head
from service.snapshots.keeper import AcceptedSave
from tests import releases
from tests.partitions import P0, P1
from tests.saving import keeper, simulated_store

FILES = sorted(releases.HERE.glob("*.json"))
STORED_MODELS = [(file, name) for file in FILES for name in json.loads(file.read_text())]


def stored_model(file: Path, name: str) -> tuple[dict[str, bytes], str]:
    """The fields of a model as a release left them, and its state digest."""
    model = json.loads(file.read_text())[name]
    return {field: base64.b64decode(value) for field, value in model["fields"].items()}, model["state_digest"]


def test_this_release_has_its_file_and_its_row() -> None:
    assert releases.HERE / f"{__version__}.json" in FILES
    guarantees = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \| (\d+) \|", guarantees, re.MULTILINE)
    assert [row[0] for row in rows] == [file.stem for file in FILES]
    assert rows[-1] == (__version__, str(SCHEMA), str(FOLD))


def fold(file: Path, name: str) -> int:
    return int(json.loads(stored_model(file, name)[0]["head"])["identity"]["fold"])


SAME_FOLD = [stored for stored in STORED_MODELS if fold(*stored) == FOLD]
OTHER_FOLD = [stored for stored in STORED_MODELS if stored not in SAME_FOLD]


@pytest.mark.parametrize(("file", "name"), OTHER_FOLD, ids=lambda x: x if isinstance(x, str) else x.stem)
async def test_a_model_of_another_fold_is_refused_with_the_ways_out(file: Path, name: str) -> None:
    fields, _ = stored_model(file, name)
    store, redis = simulated_store(dict(fields))
    message = f"older release, to which records mean something else .it has fold {fold(file, name)}, this one {FOLD}."
    with pytest.raises(SnapshotForeign, match=f"{message}: run that release, or .* `perceptron reset -m m --yes`"):
        await keeper(store, "m").restore()
    assert redis.state == fields


@pytest.mark.parametrize(("file", "name"), SAME_FOLD, ids=lambda x: x if isinstance(x, str) else x.stem)
async def test_a_model_of_a_release_is_restored_and_learns_on(file: Path, name: str) -> None:
    fields, digest = stored_model(file, name)
    store, redis = simulated_store(fields)
    saver = keeper(store, "m")
    learner: Any = await saver.restore()
    assert saver.head is not None
    assert snapshot_content(learner).head.state_digest == saver.head.state_digest == digest
    assert saver.head.kept
    assert saver.head.run_blobs or saver.head.runs
    for version in saver.head.kept:
        data = redis.state[f"v:{version.version}"]
        Head.decode(data, hashlib.sha256(data).hexdigest())
    learner.apply(Records.from_values(learner.next[P0], releases.events(learner.identity)[:3]))
    save = await saver.save(learner, {}, saver.head.source)
    assert isinstance(save, AcceptedSave)
    restored: Any = await keeper(store, "m").restore()
    assert snapshot_content(restored).head.state_digest == snapshot_content(learner).head.state_digest


@pytest.mark.parametrize("name", ["named", "hashed", "raw"])
async def test_a_model_of_a_release_reads_lists_of_objects_from_its_next_records_on(name: str) -> None:
    """What it rejected before, it rejects in a replay too, however the records are divided."""
    fields, _ = stored_model(releases.HERE / "0.2.0.json", name)
    store, _ = simulated_store(fields)
    saver = keeper(store, "m")
    learner = await saver.restore()
    assert learner
    assert saver.head
    since, identity = learner.next, learner.identity
    assert learner.lists_since == since
    raws = releases.events(identity)[:2]
    lists = [raw.replace(b'{"n', b'{"list": [{"x": 1}, {"x": "y"}], "n') for raw in raws]
    lists = [*lists, *(BOM_UTF8 + raw for raw in lists)]
    rejected, events = learner.main.counts.rejected.copy(), learner.main.counts.events
    learner.apply(Records.from_values(since[P0], lists))
    assert (learner.main.counts.rejected, learner.main.counts.events) == (rejected, events + len(lists))
    saved = await saver.save(learner, {}, saver.head.source)
    assert isinstance(saved, AcceptedSave)
    saved_digest = saved.head.state_digest
    again = await keeper(store, "m").restore()
    assert again
    assert (again.lists_since, snapshot_content(again).head.state_digest) == (since, saved_digest)
    replayed = Learner(identity)
    replayed.lists_since = again.lists_since
    replayed.begin({P0: 0, P1: 5})
    raws = releases.events(identity)
    for i in range(0, len(raws), 5):
        partition = (P0, P1)[i // 5 % 2]
        replayed.apply(Records.from_values(replayed.next[partition], raws[i : i + 5], partition))
    for raw in lists:
        replayed.apply(Records.from_values(replayed.next[P0], [raw]))
    assert snapshot_content(replayed).head.state_digest == saved_digest
    replayed.lists_since = {}
    assert snapshot_content(replayed).head.state_digest != saved_digest


async def test_this_release_stores_what_its_file_has() -> None:
    """This release still writes the same bytes: a release that does not needs another number and another file."""
    for name, identity in releases.IDENTITIES.items():
        fields, digest = await releases.stored(identity)
        old_fields, old_digest = stored_model(releases.HERE / f"{__version__}.json", name)
        if identity.rule != "logistic-delta":  # its exp may differ between machines
            assert digest == old_digest
        head = json.loads(fields["head"])
        seen = head["observations"]
        seen["pairs"] = [pair for pair in seen["pairs"] if "previous" not in (pair["first"], pair["second"])]
        assert {"previous", "ranking", "features"} <= seen.keys()  # new observations, which no digest has
        head["observations"] = {name: seen[name] for name in json.loads(old_fields["head"])["observations"]}
        assert head.pop("lists_since") == {}
        assert shape(head) == shape(json.loads(old_fields["head"]))


def shape(value: Any) -> Any:
    """A head without its values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def object_paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all objects in a head, except those whose members have any name: partitions, reasons, arrays."""
    paths = [path] if isinstance(value, dict) and (not path or path[-1] not in OPEN_OBJECTS) else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*paths, *(place for name, member in inner for place in object_paths(member, (*path, name)))]


OPEN_OBJECTS = ("next", "covered", "rejected", "arrays")


def set_member(head: Any, path: tuple[str | int, ...], name: str, value: Any) -> tuple[bytes, str]:
    """The head with this member, and its digest."""
    head = json.loads(json.dumps(head))
    place = head
    for step in path:
        place = place[step]
    place[name] = value
    data = json.dumps(head).encode()
    return data, hashlib.sha256(data).hexdigest()


def test_an_unknown_member_is_refused_wherever_it_stands() -> None:
    fields, _ = stored_model(FILES[-1], "named")
    head = json.loads(fields["head"])
    paths = object_paths(head)
    assert {p[-1] for p in paths if p} >= {"identity", "source", "writer", "counts", "observations", "fingerprint", "w"}
    changes: list[tuple[tuple[str | int, ...], str, Any]] = [
        (path, "later", value) for path in paths for value in (None, 1)
    ]
    changes += [((), "schema", SCHEMA + 1), (("identity",), "fold", FOLD + 1), (("identity",), "rule", "later")]
    changes += [(("arrays",), "later", {"base": [], "deltas": []}), ((), "order", "later")]
    for path, name, value in changes:
        data, digest = set_member(head, path, name, value)
        with pytest.raises(SnapshotForeign, match=r"written by a newer release \(.*\): run that release") as raised:
            Head.decode_current("m", digest, data)
        assert "reset" not in str(raised.value)
        assert "rollback" not in str(raised.value)
    # In a newer schema everything may be different.
    for data in (b'{"schema":2}', b"\xff"):
        with pytest.raises(SnapshotForeign):
            Head.decode(data, hashlib.sha256(data).hexdigest())


def test_a_head_from_before_a_member_was_added_is_read() -> None:
    fields, _ = stored_model(FILES[-1], "named")
    members = json.loads(fields["head"])
    del members["writer"], members["observations"]["pairs"], members["observations"]["averaged_missed"]
    data = json.dumps(members).encode()
    head = Head.decode(data, hashlib.sha256(data).hexdigest())
    observations = head.observations
    assert (head.writer, observations.pairs, observations.averaged_missed) == (UNKNOWN_WRITER, [], None)


def test_a_kept_version_of_a_newer_release_is_left_out() -> None:
    fields, _ = stored_model(FILES[-1], "named")
    head = Head.decode(fields["head"], fields["digest"].decode())
    newest = head.kept[-1]
    data, digest = set_member(json.loads(fields[f"v:{newest.version}"]), (), "later", None)
    changed_head = msgspec.structs.replace(head, kept=[*head.kept[:-1], msgspec.structs.replace(newest, digest=digest)])
    versions = [fields[f"v:{v.version}"] for v in head.kept]
    assert len(head.kept_versions(fields["digest"].decode(), versions)) == len(versions)
    assert len(changed_head.kept_versions("", [*versions[:-1], data])) == len(versions) - 1
