"""Snapshots of releases: a file for each, written once by `python -m tests.releases`, read by every later one."""

import asyncio
import base64
import json
from pathlib import Path

from service import __version__
from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import Fingerprint, TopicIdentity, Writer
from service.snapshots.keeper import AcceptedSave
from tests.conftest import event
from tests.partitions import P0, P1
from tests.saving import FakeClock, keeper, simulated_store

HERE = Path(__file__).parent
IDENTITIES = {
    "named": Identity(average=True, labels=("no", "yes")),
    "positional": Identity(features="positional", dimension=3, rule="logistic-delta", eta=0.1, slope=1.0),
    "hashed": Identity(features="hashed", bits=4, rule="lms", eta=0.01, average="recent", half_life=7),
    "raw": Identity(scale="standard", event=Places(features="", without=("ñ",), where={"/id": ("a", 1)})),
}


def events(identity: Identity) -> list[bytes]:
    """Some events and one that is none; two partitions of them are learned."""
    labels = identity.labels or (-1, 1)
    values = [round(((i * 37) % 19 - 9) / 7, 3) for i in range(60)]
    named = [{f"n{i % 7}": values[i], "ñ": values[i + 1]} for i in range(40)]
    shown = [values[i : i + 3] for i in range(40)] if identity.dimension else named
    if identity.event.features == "":
        more = [{"tags": ["a", "b"][: i % 3], "new": i % 5 == 0, "id": ["a", 1, "b"][i % 3]} for i in range(40)]
        raw = [{**x, **y, "label": labels[i % 3 == 0]} for i, (x, y) in enumerate(zip(named, more, strict=True))]
        return [*(json.dumps(one).encode() for one in raw), b"no event"]
    return [*(event(x, labels[i % 3 == 0]) for i, x in enumerate(shown)), b"no event"]


async def stored(identity: Identity) -> tuple[dict[str, bytes], str]:
    """The fields of a model with kept versions, deltas and runs, and its state digest."""
    (store, redis), clock = simulated_store(), FakeClock()
    ours = keeper(store, "m", clock, keep_every=2.0, keep=2, writer=Writer("group", "host:1"))
    learner = Learner(identity)
    learner.begin({P0: 0, P1: 5})
    raws, last = events(identity), ""
    for i in range(0, len(raws), 5):
        partition = (P0, P1)[i // 5 % 2]
        at = learner.next[partition]
        learner.apply(Records.from_values(at, raws[i : i + 5], partition))
        saved = await ours.save(learner, {partition: Fingerprint(at + 4, 7, i)}, TopicIdentity("cluster", "topic"))
        assert isinstance(saved, AcceptedSave)
        clock.seconds += 1
        last = saved.head.state_digest
    return redis.state, last


def write() -> Path:
    """The file of this release."""
    models = {name: asyncio.run(stored(identity)) for name, identity in IDENTITIES.items()}
    file = HERE / f"{__version__}.json"
    said = {
        name: {"state_digest": digest, "fields": {f: base64.b64encode(v).decode() for f, v in sorted(fields.items())}}
        for name, (fields, digest) in models.items()
    }
    file.write_text(json.dumps(said, indent=1) + "\n")
    return file
