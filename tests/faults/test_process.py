"""What happens to processes: killed at random and at every point of a save, stopped, hung, moved about."""

import random
import signal

from tests.faults.conftest import repeated
from tests.faults.trial import Trial


def test_killed_at_random(trial: Trial) -> None:
    """SIGKILL, each after at least 0.5 % of the run's progress since the last; a standby or a restart goes on."""
    kills, rng = repeated(100, 5), random.Random(11)
    trial.stream(rate=1000)
    services = [trial.service() for _ in range(2)]
    trial.up(*services)
    trial.ask()
    progress = []
    for _ in range(kills):
        progress.append(trial.progress(rng.randint(500, 1500)))
        learner = trial.learning()
        trial.kill(learner)
        trial.again(learner)
    trial.settle()
    trial.judged()
    total = trial.logs[-1].partitions[0].end
    steps = [b - a for a, b in zip([0, *progress], progress, strict=False)]
    assert min(steps) >= 0.005 * total * 100 / max(100, kills), (steps, total)
    print(f"{kills} SIGKILLs, at least {min(steps)} of {total} records after each")


def test_sigterm_while_learning(trial: Trial) -> None:
    """SIGTERM in a slice: it saves, ends with 0, and a restart goes on."""
    trial.stream()
    service = trial.failing("slice", signal.SIGTERM, nth=60)
    trial.ask()
    assert service.process.wait(60) == 0
    trial.again(service)
    trial.progress(1000)
    trial.settle()
    trial.judged()
