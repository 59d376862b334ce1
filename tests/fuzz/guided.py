"""Coverage-guided bytes through the decoder, against the judge: `make fuzz`, or `python -m tests.fuzz.guided SECONDS`.

The first byte chooses the identity, the rest is one record between two good ones. A finding is written to `.fuzz/` and
replayed by `python -m tests.fuzz.guided 0 .fuzz/crash-…`.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["service.learning.events", "tests.fuzz.judge"]):
    from service.learning.columns import columns_for
    from service.learning.events.batch import REASONS, Decoder
    from tests.fuzz import judge
from service.learning.identity import Identity
from tests.fuzz.events import IDENTITIES, Judged, Wrong, bits, event, record
from tests.fuzz.texts import TOKENS, Texts
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED


def neighbour(identity: Identity) -> bytes:
    """A good event of this identity."""
    texts = Texts(Random(0))
    return next(raw for raw in iter(lambda: event(texts, identity), b"") if judge.event(raw, identity)[0])


NEIGHBOURS = [neighbour(identity) for identity in IDENTITIES]


def one(data: bytes) -> None:
    """Decode one record; raises where decoder and judge differ, or where the neighbours are touched."""
    if not data:
        return
    i, raw = data[0] % len(IDENTITIES), data[1:]
    identity, good = IDENTITIES[i], NEIGHBOURS[i]
    columns, judged = columns_for(identity), Judged(identity)
    batch, rejects = Decoder(identity, columns).decode([good, raw, good])
    found, faults = judge.event(raw, identity)
    known = judge.event(good, identity)[0]
    events = [e for e in (known, found, known) if e]
    pairs = [pair for e in events for pair in judged.pairs(e.features)]
    right = (
        batch.records == ([0, 1, 2] if found else [0, 2])
        and list(batch.skipped) == [1] * (found is None and not faults)
        and len(rejects) == bool(faults)
        and all(r.record == 1 and r.reason in faults and r.reason in REASONS for r in rejects)
        and batch.names == judged.names
        and len(batch.ignored) == judged.ignored
        and batch.columns.tolist() == [column for column, _ in pairs]
        and bits(batch.values) == bits([value for _, value in pairs])
        and bits(batch.labels) == bits([e.y for e in events])
        and bits(batch.weights) == bits([e.weight for e in events])
    )
    if not right:
        raise Wrong(f"{identity}: {raw!r}: judged {found} {faults}, got {batch} {rejects}")


def main() -> None:
    """Fuzz for so many seconds from a corpus of known kinds and generated events."""
    seconds, *files = sys.argv[1:]
    found = Path(".fuzz")
    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        kinds = [*GOOD_NAMED, *(raw for raw, _ in BAD_NAMED + BAD_POSITIONAL if raw)]
        starts = [(0, raw) for raw in kinds] + [(4, raw) for raw in kinds]
        texts = Texts(Random(0))
        starts += [(i % 8, record(texts, IDENTITIES[i % 8]) or b"") for i in range(400)]
        for i, (first, raw) in enumerate(starts):
            if len(raw) < 2000:
                (corpus / f"{i}").write_bytes(bytes([first]) + raw)
        words = Path(folder) / "words"
        words.write_text("".join('"' + "".join(f"\\x{b:02x}" for b in t) + '"\n' for t in TOKENS if len(t) < 20))
        options = [f"-max_total_time={seconds}", "-max_len=2000", f"-dict={words}", "-print_final_stats=1"]
        options += [f"-artifact_prefix={found}/", *(files or [str(corpus)])]
        atheris.Setup([sys.argv[0], *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
