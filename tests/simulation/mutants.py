"""Protections taken away one at a time, and the first seed that notices: `python -m tests.simulation.mutants`."""

import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.changed import changed

HERE = Path(__file__).parents[2]
LEARN, KEEPER = "service/streaming/learn.py", "service/snapshots/keeper.py"
RECOGNISE, CODEC = "service/streaming/recognise.py", "service/snapshots/codec.py"
CLASSIFIER, IDENTITY = "service/learning/classifier.py", "service/learning/identity.py"
BLOBS, HEAD, STORE = "service/snapshots/blobs.py", "service/snapshots/head.py", "tests/simulation/world.py"
SEQUENCE, SCALE = "service/streaming/kafka/offset_sequence.py", "service/learning/scale.py"
SEQUENCE_TEST = "tests/unit/test_offset_sequence.py"
LEARNER = "service/learning/learner.py"
SEEDS = 300
CONTRACT = "tests/contract/test_store.py::test_of_the_simulator"
ALONE = "tests/simulation/test_alone.py"
NEWER = f"{ALONE}::test_a_newer_releases_head_is_not_gone_on_with"
CANDIDATES = "tests/unit/test_candidates.py"
PACE = "tests/unit/test_pace.py"


class Mutant(NamedTuple):
    """A protection that is missing: text of a file that stands there once, and what stands there instead."""

    name: str
    file: str
    old: str
    new: str
    test: str = ""
    """What notices where few seeds can: its history is rare, or a needless rewind loses nothing."""
    seed: int = 0
    """One that noticed, where the first to do so is late: it is tried before all of them."""


MUTANTS = (
    Mutant("weights without a limit", IDENTITY, "MAX_SQUARED_NORM = 1e30", "MAX_SQUARED_NORM = 1e300", seed=10),
    Mutant("no parent check", STORE, "        if current != parent:\n", "        if False:\n"),
    Mutant("no check that blobs are there", STORE, "if not live <= state.keys():", "if False:", seed=72),
    Mutant(
        "garbage swept outside the commit", STORE, "            self.sweep(live)\n",
        "            self.late.append(('sweep', lambda: self.sweep(live)))\n",
    ),
    Mutant(
        "the parent's blobs swept", STORE, '[state["head"]] if "head" in state else []', "[]",
        f"{CONTRACT}[what_nobody_refers_to_is_swept_with_the_commit]",
    ),
    Mutant("the kept versions' blobs swept", STORE, 'if field[:2] == "v:" and field !=', "if False and field !="),
    Mutant("a commit said twice is refused", STORE, "        if current == digest:\n", "        if False:\n"),
    Mutant(
        "saved before the dead letters are flushed", LEARN, "                await self._log.flush()\n", "",
    ),
    Mutant(
        "an average that begins anew with each restore", CLASSIFIER, "[arrays[name] for name in names]",
        '[arrays[name] * (name == "w") for name in names]',
    ),
    Mutant(
        "a class that has another's weights after each restore", CLASSIFIER, 'arrays[f"{name}/{k}"]',
        'arrays[f"{name}/{min(k, 1)}"]', seed=20,
    ),
    Mutant(
        "classes in another order after each restore", CLASSIFIER, "for k in classes]", "for k in classes[::-1]]",
        seed=20,
    ),
    Mutant(
        "candidates that begin anew with each restore", HEAD,
        "{name: candidate(name, *of) for name, of in beside.items()}", "{}",
        seed=16,
    ),
    Mutant(
        "a candidate that diverged learns on after a restore", HEAD, "if one.diverged_at is not None:", "if False:",
        seed=130,
    ),
    Mutant(
        "a candidate goes on with other settings", LEARNER, "wanted[n].identity == c.identity", "True",
        f"{CANDIDATES}::test_they_begin_go_on_and_are_dropped_as_settings_say",
    ),
    Mutant("counts that begin anew", SCALE, "list(sums)", "[0 * sums[0], sums[1], sums[2]]", seed=29),
    Mutant("means that begin anew", SCALE, "list(sums)", "[sums[0], 0 * sums[1], sums[2]]", seed=29),
    Mutant("variances that begin anew", SCALE, "list(sums)", "[sums[0], sums[1], 0 * sums[2]]", seed=29),
    Mutant("categories and booleans are scaled too", "service/learning/columns.py", "value.__class__ is float", "True"),
    Mutant("no seek on assignment", LEARN, "                self._log.seek(learner.next)  # 3\n", ""),
    Mutant("no fingerprint check", RECOGNISE, "elif known and record and fingerprint(record) != known:", "elif False:"),
    Mutant(
        "saved without a look at the topic's id", LEARN, "if await self._log.source() != model.source:", "if False:",
        seed=70,
    ),
    Mutant(
        "another topic without the last record is gone on with", RECOGNISE,
        "if record is None and recreated and learned[name]:", "if False:",
        f"{ALONE}::test_another_topic_without_the_last_record_is_not_gone_on_with",
    ),
    Mutant(
        "what was learned of another topic is kept over a rebalance", LEARN, "or self._model.source != source or", "or",
        f"{ALONE}::test_what_was_learned_of_another_topic_is_dropped_at_a_rebalance",
    ),
    Mutant(
        "no check that the log has the next record", RECOGNISE,
        "in sorted(following.items()):\n", "in ():\n",
    ),
    Mutant(
        "a partition that is not assigned yet is taken for a trimmed one", RECOGNISE,
        "if partition not in bounds and not recreated:", "if False:",
        f"{ALONE}::test_a_partition_that_the_group_has_not_heard_of_is_waited_for",
    ),
    Mutant(
        "no identity check", RECOGNISE,
        "if differences := identity.differences(head.identity):", "if differences := []:", seed=120,
    ),
    Mutant(
        "a refused state is kept", LEARN, "self._model, self._displaced = None, True\n", "self._displaced = True\n",
        seed=87,
    ),
    Mutant(
        "another cluster's head is gone on with", RECOGNISE, "if head.source.elsewhere(source):", "if False:",
        f"{ALONE}::test_another_clusters_model_is_not_gone_on_with[3]",
    ),
    Mutant(
        "another topic is gone on with where nothing was learned", RECOGNISE,
        "if recreated and not any(learned.values()):", "if False:", seed=38,
    ),
    Mutant(
        "what a newer release says beside is dropped", HEAD,
        "class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True",
        "class Head(msgspec.Struct, frozen=True, kw_only=True", NEWER,
    ),
    Mutant("a newer fold is gone on with", CODEC, "if head.identity.fold > FOLD:", "if False:", NEWER),
    Mutant(
        "an array that is not known is dropped", CODEC,
        "if head.arrays.keys() != (known := {*head.identity.arrays, *beside}):",
        "if False:", NEWER,
    ),
    Mutant(
        "a head that does not match its digest is read", CODEC, "if blobs.digest(data) != digest:", "if False:",
        seed=22,
    ),
    Mutant(
        "a head without its digest is none", STORE,
        'if bool(redis.current) != bool(redis.state.get("head")):', "if False:",
        f"{CONTRACT}[half_a_head_is_damage]",
    ),
    Mutant(
        "damage is looked at as another decision is", LEARN,
        "if isinstance(self._reason, UNREADABLE) or await", "if await",
        f"{ALONE}::test_what_was_damaged_and_is_given_back_is_gone_on_with",
    ),
    Mutant(
        "nobody says who is outside the group", LEARN, "self._tell.outsider(head.writer)", "pass",
        f"{ALONE}::test_two_groups_are_told_of_each_other",
    ),
    Mutant(
        "bounds of another assignment believed at the start", LEARN,
        "if not self._log.held:  # the bounds are those of no partition, or of some\n                    continue",
        "if False:\n                    continue", seed=45,
    ),
    Mutant(
        "a doubtful save is never settled", KEEPER, "        if self._doubtful is None:\n            return\n",
        "        return\n",
    ),
    Mutant(
        "a doubtful save is taken for accepted", KEEPER,
        "if await self._store.digest(self.model) == digest:\n", "if True:\n",
        f"{CONTRACT}[a_keeper_that_lost_a_reply_finds_out]",
    ),
    Mutant(
        "runs of a failed save are not put back", KEEPER, "            learner.runs[:0] = cut\n", "            pass\n",
    ),
    Mutant("a conflict taken for accepted", KEEPER, 'if verdict == "CONFLICT":', "if False:"),
    Mutant(
        "missing blobs are not uploaded again", KEEPER, 'if verdict != "MISSING":', "if True:",
        f"{CONTRACT}[a_keeper_uploads_again_what_vanished]",
    ),
    Mutant(
        "the wall clock says when a version is due", KEEPER, "return now - self._last_kept[1] >= self._keep_every",
        "return self._clock.time() - last.saved_at >= self._keep_every", seed=277,
    ),
    Mutant(
        "a version of the future is of now", KEEPER, "now - abs(self._clock.time() - last.saved_at)",
        "now - (self._clock.time() - last.saved_at)", seed=277,
    ),
    Mutant("the recorded order has no bound", KEEPER, "if len(learner.runs) > MOST_RUNS:", "if False:"),
    Mutant(
        "a look from before the last save is believed", LEARN,
        "if looked != self._keeper.digest and not await self._keeper.current():", "if looked != self._keeper.digest:",
        f"{ALONE}::test_a_look_from_before_the_last_save_drops_nothing",
    ),
    Mutant(
        "nobody asks where a look found another head", LEARN,
        "if looked != self._keeper.digest and not await self._keeper.current():", "if False:",
        f"{ALONE}::test_a_look_from_before_the_last_save_drops_nothing",
    ),
    Mutant(
        "a save that waited for the store paces the next", KEEPER, "min(saved.cost, self._cost), saved.cost",
        "saved.cost, saved.cost", f"{PACE}::test_after_the_store_hung_saves_are_as_often_as_before",
    ),
    Mutant(
        "a store that answers again is waited for", KEEPER, "return (back or self._clock.now()",
        "return (self._clock.now()", f"{PACE}::test_a_store_that_answers_again_is_saved_to_at_once",
    ),
    Mutant(
        "no second look where a blob is missing", KEEPER,
        "if found is not None and found[0] == digest:", "if found is not None:",
        f"{CONTRACT}[a_reader_that_is_overtaken_looks_again]",
    ),
    Mutant("a gap that is not looked back at", SEQUENCE, "if ((gap and unseen) or gap_follows)", "if gap_follows"),
    Mutant(
        "a damaged batch that a seek goes into", SEQUENCE, "if ((gap and unseen) or gap_follows)",
        "if (gap and unseen)",
        f"{SEQUENCE_TEST}::test_a_damaged_batch_that_a_seek_goes_into_is_found_by_the_one_before_it",
    ),
    Mutant(
        "a damaged batch that ends where a seek goes", SEQUENCE, "if not (self._anchored or", "if not (True or",
        f"{SEQUENCE_TEST}::test_a_damaged_batch_that_ends_where_a_seek_goes_is_found_by_the_one_before_it",
    ),
    Mutant(
        "a batch after a gap is not held", SEQUENCE, "if following is None and not at_end:",
        "if False:", f"{SEQUENCE_TEST}::test_a_held_batch_that_the_next_one_contradicts_is_damage",
    ),
    Mutant(
        "a batch beyond the log's end", SEQUENCE, "if batch.end > high_watermark:", "if False:",
        f"{SEQUENCE_TEST}::test_a_batch_that_stays_beyond_the_high_watermark_is_damage",
    ),
    Mutant("a batch over others", SEQUENCE, "if (gap or self._sought) and not agreed:", "if False:"),
    Mutant(
        "a batch that goes back", SEQUENCE,
        "if not (gap or contains) or (batch.start < self.position and not self._sought):", "if False:",
        f"{SEQUENCE_TEST}::test_batches_that_go_back_are_damage_though_they_agree_with_each_other",
    ),
    Mutant(
        "the rest of a slice that was cut short is left out", LEARN, "return outcome.consumed\n",
        "return len(records)\n",
    ),
    Mutant(
        "known runs are looked for by name", HEAD, "runs = blobs.missing_runs(head.run_blobs, before.runs)",
        "runs = [name for name in head.run_blobs if name not in before.runs]", seed=859,
    ),
)  # fmt: skip


def tried(mutant: Mutant) -> str:
    """The first seed that notices and what it says, or the test; '' where none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = changed(HERE, Path(folder) / "copy", mutant.file, [(mutant.old, mutant.new)])
        if mutant.test:
            from tests.template import PYTEST

            return mutant.test if "1 failed" in _said(copy, "pytest", *PYTEST, mutant.test) else ""
        for seeds in ([f"{mutant.seed}:{mutant.seed + 1}"] if mutant.seed else []) + [f"0:{SEEDS}"]:
            if found := re.search(r"^(seed \d+: .*)", _said(copy, "tests.simulation", seeds), re.MULTILINE):
                return found[1][:120]
    return ""


def _said(copy: Path, *command: str) -> str:
    from tests import template  # which has threads, as the simulator must not

    done = template.run(command, {"NUMBA_DISABLE_JIT": "1"}, copy, kind="packages")
    assert not done.stderr, done.stderr
    return done.stdout


def main() -> int:
    """Print the table; the exit code is 1 where a mutant lives."""
    lived = 0
    for mutant in MUTANTS:
        noticed = tried(mutant)
        lived += not noticed
        print(f"{mutant.name} -> {noticed or 'not noticed'}", flush=True)
    return min(lived, 1)


if __name__ == "__main__":
    sys.exit(main())
