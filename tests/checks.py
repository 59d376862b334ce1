"""Statements about every rule: stub."""
from service.learning.learner import DEFAULT, Learner, Options
from service.snapshots import blobs
from service.snapshots import head as heads
from service.snapshots.head import Head


def state_digest(learner: Learner) -> str:
    """What equal states share."""
    return heads.content(learner).state_digest


def restored(learner: Learner, options: Options = DEFAULT) -> Learner:
    """What a reader of this learner's snapshot has."""
    content = heads.content(learner)
    head = Head(
        model="m", version=1, parent="", saved_at=0.0, identity=learner.identity, state_digest=content.state_digest,
        order="log", cluster="c", next={}, covered=heads.covered_as_json(learner), counts=learner.counts,
        observations=heads.observations(learner), runs=content.runs,
        run_blobs=content.stored.runs, kept=[], columns=len(learner.columns),
        arrays=content.arrays, reference=content.reference, names=content.stored.names.blobs,
    )  # fmt: skip
    data = heads.encode(head)
    return heads.take_up(heads.decode(data, blobs.digest(data)), content.blobs, options)[1]()
