"""Removes one protection at a time and prints the first seed that fails: `python -m tests.simulation.mutants`."""

import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.source_copy import write_changed_copy

HERE = Path(__file__).parents[2]
STREAMING, SNAPSHOTS, LEARNING = "service/streaming/", "service/snapshots/", "service/learning/"
WORLD, CLASSIFIER, RESTORE = "tests/simulation/world.py", f"{LEARNING}classifier.py", f"{SNAPSHOTS}content.py"
LEARN, KEEPER = f"{STREAMING}learn_loop.py::LearnLoop", f"{SNAPSHOTS}keeper.py::Keeper"
HEAD, JOIN, MEMORY = f"{SNAPSHOTS}head.py::Head", f"{LEARNING}join/join.py::Join", f"{LEARNING}join/memory.py"
RESUME, SEQUENCE = f"{STREAMING}resume_check.py", f"{STREAMING}kafka/fetching/offset_sequence.py::OffsetSequence"
SEEDS = 300
UNIT_KAFKA, ASSIGNOR = "tests/unit/streaming/kafka", f"{STREAMING}kafka/membership/assignor.py"
WHOLE_MODELS = "test_a_member_gets_all_topics_of_models_that_it_knows"
OFFSETS = f"{UNIT_KAFKA}/test_offset_sequence.py"
CONTRACT = "tests/contract/test_store.py::test_"
ALONE = "tests/simulation/test_alone.py"
BOUNDS = "tests/unit/learning/evaluation/test_bounds.py::test_"
TIGHT = f"{BOUNDS}streams_on_which_the_bound_is_tight"
KERNEL, MISTAKE_BOUND = f"{LEARNING}kernel/kernel.py", f"{LEARNING}evaluation/mistake_bound.py"
FOLLOW, SEGMENT = f"{MISTAKE_BOUND}::_follow", f"{MISTAKE_BOUND}::BoundSegment.follow"
NEWER = f"{ALONE}::test_a_newer_releases_head_is_not_continued"


class Mutant(NamedTuple):
    """A function without one of its protections: the statement or expression `old`, replaced by `new`."""

    name: str
    function: str
    old: str
    new: str
    test: str = ""
    """The test that fails, if few seeds do: the history is rare, or a needless rewind loses nothing."""
    seed: int = 0
    """A seed that fails, if it is a late one: it is tried before the others."""

    def __str__(self) -> str:
        return f"{self.function.rpartition('::')[2]}: {self.name}"


MUTANTS = (
    Mutant("no limit of the weights", f"{LEARNING}identity.py", "MAX_SQUARED_NORM = 1e30", "MAX_SQUARED_NORM = 1e300",
           seed=1),
    Mutant("no parent check", f"{WORLD}::Redis.commit", "current != parent", "False"),
    Mutant("no check that blobs are there", f"{WORLD}::Redis.commit", "live <= state.keys()", "True", seed=33),
    Mutant("garbage swept outside the commit", f"{WORLD}::Redis.commit", "self.sweep(live)",
           "self.late.append(('sweep', lambda: self.sweep(live)))"),
    Mutant("the kept versions' blobs swept", f"{WORLD}::Redis.commit", 'field[:2] == "v:"', "False"),
    Mutant("a commit said twice is refused", f"{WORLD}::Redis.commit", "current == digest", "False"),
    Mutant("dead letters not flushed before a save", f"{LEARN}._save", "await self.log.flush()", "None"),
    Mutant("saved without a look at the topic's id", f"{LEARN}._save", "await self.log.source() != model.source",
           "False", seed=70),
    Mutant("no seek on assignment", f"{LEARN}._restore", "self.log.seek(learner.next)", "None"),
    Mutant("a model of another topic kept over a rebalance", f"{LEARN}._restore", "self._model.source != source",
           "False", f"{ALONE}::test_unsaved_learning_from_another_topic_is_dropped_at_a_rebalance"),
    Mutant("bounds of another assignment believed", f"{LEARN}._restore", "if not self.log.held:\n    continue", "pass",
           seed=16),
    Mutant("a refused state is kept", f"{LEARN}._drop", "self._model, self._displaced = None, True",
           "self._displaced = True", seed=29),
    Mutant("damage that was mended is not looked at again", f"{LEARN}._watch_stopped",
           "isinstance(reason, UNREADABLE_ERRORS)", "False",
           f"{ALONE}::test_learning_continues_once_damaged_data_is_restored"),
    Mutant("nobody says who is outside the group", f"{LEARN}._name_outside_writer",
           "self.observer.outside_writer(head.writer)", "None",
           f"{ALONE}::test_two_groups_report_each_other"),
    Mutant("a look from before the last save is believed", f"{LEARN}._confirm", "not await self.keeper.current()",
           "True", f"{ALONE}::test_a_digest_from_before_the_last_save_drops_nothing"),
    Mutant("the rest of a slice that was cut short is left out", f"{LEARN}._apply", "return outcome.consumed",
           "return len(records)"),
    Mutant("no fingerprint check", f"{RESUME}::check_last_records", "fingerprint(record) != last", "False"),
    Mutant("another topic without the last record is gone on with", f"{RESUME}::check_last_records",
           "record is None and recreated and learned[partition] and log.held", "False",
           f"{ALONE}::test_another_topic_without_the_last_record_is_not_continued"),
    Mutant("another topic is gone on with where nothing was learned", f"{RESUME}::check_last_records",
           "recreated and not any(learned.values())", "False", seed=63),
    Mutant("no check that the log has the next record", f"{RESUME}::check_offsets", "sorted(following.items())",
           "()"),
    Mutant("a partition that is not assigned yet is taken for a trimmed one", f"{RESUME}::check_offsets",
           "partition not in bounds and not recreated", "False",
           f"{ALONE}::test_learning_waits_for_a_partition_that_is_not_assigned_yet"),
    Mutant("no identity check", f"{RESUME}::same_settings", "identity.differences(head.identity)", "[]", seed=120),
    Mutant("a model that was reset begins under old settings", f"{WORLD}::Redis.commit", "state.get('identity')",
           "None"),
    Mutant("a learner with old settings does not say that the model was reset", f"{LEARN}._begin",
           "resume_check.settings_of_reset(self.log.model, await self.keeper.required_identity(), self.identity)",
           "None"),
    Mutant("another cluster's head is gone on with", f"{RESUME}::same_settings", "head.source.elsewhere(source)",
           "False", f"{ALONE}::test_another_clusters_model_is_not_continued[3]"),
    Mutant("an average that begins again with each restore", f"{CLASSIFIER}::state_of",
           "arrays[name]", 'arrays[name] * (name == "w")'),
    Mutant("a class that has another's weights after each restore", f"{CLASSIFIER}::state_of",
           "arrays[name]", 'arrays[name.replace("/2", "/1")]', seed=20),
    Mutant("means that begin again with each restore", f"{LEARNING}kernel/scaling.py::StandardScaler.from_sums",
           "list(sums)", "[sums[0], 0 * sums[1], *sums[2:]]", seed=29),
    Mutant("newest sums that begin again with each restore", f"{LEARNING}kernel/scaling.py::StandardScaler.from_sums",
           "list(sums)", "[*sums[:3], *(0 * each for each in sums[3:])]", seed=61),
    Mutant("categories and booleans are scaled too", f"{LEARNING}columns/columns.py::_is_number",
           "value.__class__ is float", "True"),
    Mutant("candidates that begin again with each restore", f"{RESTORE}::finish",
           "head.candidate_states.items()", "()", seed=46),
    Mutant("a candidate that diverged learns on after a restore", f"{RESTORE}::finish",
           "saved.diverged_at is not None",
           "False", seed=46),
    Mutant("a follower keeps the settings from before an amendment", f"{RESTORE}::_decode",
           "head.identity != learner.identity", "False", seed=6),
    Mutant("an amendment is forgotten with the next save", f"{RESTORE}::finish",
           "learner.amendments = list(head.amendments or ())", "pass", seed=6),
    Mutant("an amendment that verify ignores", "service/tools/stored/verify.py::_change", "learner.amend(identity)",
           "None", "tests/unit/learning/test_amendments.py::test_verify_learns_each_part_under_its_own_settings"),
    Mutant("a topic is given to a process that lacks one of its models", f"{ASSIGNOR}::whole_topics",
           "len(names) == least", "True", f"{UNIT_KAFKA}/test_assignor.py::{WHOLE_MODELS}[members0-expected0]"),
    Mutant("an alias that a replica misses", "service/process/service.py::Process._note_aliases",
           "self._models.aliases, aliases", "self._models.aliases, {}",
           "tests/integration/test_promote.py::test_a_promoted_model_answers_for_the_other_name_everywhere"),
    Mutant("an array that is not known is dropped", f"{HEAD}.decode",
           "head.arrays.keys() != (expected := {*head.identity.arrays, *extra})", "False", NEWER),
    Mutant("a newer fold is gone on with", f"{HEAD}.decode", "head.identity.fold > FOLD", "False", NEWER),
    Mutant("a head that does not match its digest is read", f"{HEAD}.decode", "blobs.digest(data) != digest",
           "False", seed=210),
    Mutant("a doubtful save is never settled", f"{KEEPER}._resolve", "self._doubtful is None", "True"),
    Mutant("a doubtful save is taken for accepted", f"{KEEPER}._resolve",
           "await self.store.digest(self.model) == new.digest", "True",
           f"{CONTRACT}a_keeper_that_lost_a_reply_finds_out[simulator]"),
    Mutant("runs of a failed save are not put back", f"{KEEPER}._resolve", "new.learner.runs[:0] = cut", "pass"),
    Mutant("a conflict taken for accepted", f"{KEEPER}.save", 'verdict == "CONFLICT"', "False"),
    Mutant("missing blobs are not uploaded again", f"{KEEPER}.save", 'verdict != "MISSING"', "True",
           f"{CONTRACT}a_keeper_uploads_again_what_vanished[simulator]"),
    Mutant("the wall clock says when a version is due", f"{KEEPER}._keeping",
           "abs(self.clock.time() - self.head.kept[-1].saved_at) >= self.keep_every",
           "self.clock.time() - self.head.kept[-1].saved_at >= self.keep_every", seed=277),
    Mutant("the recorded order has no bound", f"{KEEPER}._keeping", "len(learner.runs) > MAX_RUNS", "False"),
    Mutant("no second look where a blob is missing", f"{SNAPSHOTS}keeper.py::fetch_newest", "newest[0] != digest",
           "False",
           f"{CONTRACT}a_reader_that_is_overtaken_looks_again[simulator]"),
    Mutant("a gap that is not looked back at", f"{SEQUENCE}.admit", "gap and unseen", "False", seed=354),
    Mutant("a batch that the next one contradicts", f"{SEQUENCE}.admit",
           "(gap or self._sought or first) and not agreed", "False"),
    Mutant("the next one contradicts a batch in its place", f"{SEQUENCE}.admit",
           "gap or self._sought or first", "gap or self._sought",
           f"{OFFSETS}::test_a_batch_in_its_place_that_the_next_one_contradicts_is_looked_at_again_before_it_is_learned"),
    Mutant("an update at y·s < 0 alone", f"{LEARNING}rules.py::step", "y * s <= margin", "y * s < margin",
           f"{TIGHT}[axes]"),
    Mutant("a class is updated only if another score is larger", f"{KERNEL}::_learn_classes",
           "not s[own] > s[rival]", "s[own] < s[rival]", f"{TIGHT}[contradiction_of_classes]"),
    Mutant("S without the first update of a batch", FOLLOW, "moved * steps[i] * steps[i] * squared_norms[i]",
           "(i > 0) * moved * steps[i] * steps[i] * squared_norms[i]", f"{TIGHT}[axes]"),
    Mutant("η left out of z", SEGMENT, "identity.eta * identity.parameter", "identity.parameter", f"{TIGHT}[rates]"),
    Mutant("the weight left out of z", FOLLOW, "rate * weights[i]", "rate", f"{TIGHT}[rates]"),
    Mutant("the margin left out of R", FOLLOW, "moved * length * length * squared_norms[i] + slack",
           "moved * length * length * squared_norms[i]", f"{TIGHT}[margins]"),
    Mutant("one class alone in R", FOLLOW, "moved * length * length * squared_norms[i]",
           "length * length * squared_norms[i]", f"{TIGHT}[axes_of_classes]"),
    Mutant("the margin left out of S", FOLLOW, "0.0 if steps[i] == 0.0 else slack", "0.0", f"{TIGHT}[margins]"),
    Mutant("Ξ over the updates alone", FOLLOW, "along[i] *= scale * signs[i] * length",
           "along[i] = math.inf if steps[i] == 0.0 else along[i] * scale * signs[i] * length",
           f"{BOUNDS}random_streams[random_stream]"),
    Mutant("a label joined twice", f"{MEMORY}::decide_chain", "root == fresh or items[root].state == HELD",
           "root == fresh or items[root].state in (HELD, LEARNED)"),
    Mutant("a window closed by one record", f"{MEMORY}::pass_time", "min(tail[-1], tail[-2])", "tail[-1]"),
    Mutant("a held event lost at a restart", f"{JOIN}.state",
           "min(oldest, following[p])", "following[p]"),
    Mutant("an event learned both at its label and at its window's end", f"{MEMORY}::decide_chain",
           "leave(m, root, items[used].label if used >= 0 else float(m.rules[DEFAULT_LABEL]), LEARNED)",
           "leave(m, root, items[used].label if used >= 0 else float(m.rules[DEFAULT_LABEL]), HELD)"),
    Mutant("the order of a join's records not recorded", f"{LEARNING}learner.py::Learner.cover",
           "self.runs.append((index, begin, offset))", "self.runs.append((0, begin, offset))"),
    Mutant("a repeated id learned", f"{MEMORY}::take", "m.state[CLOSED] - m.rules[REACH]",
           "m.state[CLOSED] - m.rules[WINDOW]"),
    Mutant("all overdue windows closed at the first label after a silence", f"{MEMORY}::pass_label_time",
           "min(tail[0], tail[1])", "max(tail[0], tail[1])"),
    Mutant("a label record that is not read again", f"{LEARNING}learner.py::Learner.remember",
           "self.join.rebuild(part, events, labels, None if codes is None else codes[own])",
           "self.join.rebuild(part, events, NOTHING_READ, None)"),
    Mutant("a join rebuilt on top of a part of it", f"{LEARN}._rebuild",
           "learner.restore_join(head.join, head.counts.join)", "learner.join",
           f"{ALONE}::test_a_join_whose_rebuilding_ends_early_is_rebuilt_anew"),
)  # fmt: skip


def first_failure(mutant: Mutant) -> str:
    """The first seed that fails and its message, or the test; '' if none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = write_changed_copy(HERE, Path(folder) / "copy", mutant.function, [(mutant.old, mutant.new)])
        if mutant.test:
            from tests.template import PYTEST

            return mutant.test if "1 failed" in _output(copy, "pytest", *PYTEST, mutant.test) else ""
        for seeds in ([f"{mutant.seed}:{mutant.seed + 1}"] if mutant.seed else []) + [f"0:{SEEDS}"]:
            if match := re.search(r"^(seed \d+: .*)", _output(copy, "tests.simulation", seeds), re.MULTILINE):
                return match[1][:120]
    return ""


def _output(copy: Path, *command: str) -> str:
    from tests import template  # imported here: it uses threads, and the simulator must not

    result = template.run(command, {"NUMBA_DISABLE_JIT": "1"}, copy, kind="packages")
    assert not result.stderr, result.stderr
    return result.stdout


def main() -> int:
    """Print the table; the exit code is 1 if a mutant survives."""
    survivors = 0
    for mutant in MUTANTS:
        failure = first_failure(mutant)
        survivors += not failure
        print(f"{mutant} -> {failure or 'not noticed'}", flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
