"""A real fault fires its alerts and no other: the shipped rules, on a Prometheus that scrapes real processes.

The rules are those of deploy/prometheus/rules.yml, where a minute takes a second: see `speed_up`. Timeouts of Kafka,
Redis and sessions keep their length, so they are long compared with the rules; an alert that fires only for that reason
is listed with its fault. The real minutes are tested by tests/unit/alerts.yml.
"""

import asyncio
import json
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Running, create_topic, delete_topic, event, hanging, in_threads, wait
from tests.faults.trial import BAD, Trial
from tests.prometheus import Prometheus, scraping

pytestmark = pytest.mark.nightly

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
LATE_LABELS = """[model.event]
id = "/id"

[model.join]
window = "1s"
default_label = 0
max_silence = "1s"
"""
QUIET, HOUR = 15, 60
"""Seconds without a fault, before a fault and in the trial without one; each is a minute of the rules."""


def speed_up(rules: str) -> str:
    """The rules with seconds in place of minutes: `5m` becomes `5s`, `6h` becomes `6m`, and `* 60` becomes `* 1`."""
    for slow, quick in ((r"\b(\d+)m\b", r"\1s"), (r"\b(\d+)h\b", r"\1m"), (r"\* 60\b", "* 1")):
        rules = re.sub(slow, quick, rules)
    return rules


@contextmanager
def scraping_trial(trial: Trial) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the processes of a trial twice a second."""
    rules = speed_up(RULES.read_text())
    with scraping(trial.folder, trial.services, rules, "500ms", lookback="5s") as prometheus:
        # It finds its targets within five seconds, which are five minutes of the rules; until then all seem down.
        wait(lambda: not firing(prometheus), "the processes are found")
        prometheus.since = time.time()
        yield prometheus


def fired(prometheus: Prometheus) -> set[str]:
    """The alerts that have fired at any time, with their dependency."""
    seconds = max(1, int(time.time() - prometheus.since))
    return _named(prometheus, f'max_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')


def firing(prometheus: Prometheus) -> set[str]:
    """The alerts that are firing now."""
    return _named(prometheus, 'ALERTS{alertstate="firing"}')


def _named(prometheus: Prometheus, query: str) -> set[str]:
    alerts = [series["metric"] for series in prometheus.ask("/query", query=query)["result"]]
    return {" ".join(filter(None, (alert["alertname"], alert.get("dependency")))) for alert in alerts}


def check_quiet(prometheus: Prometheus, seconds: float) -> None:
    """Wait until Prometheus has scraped for this long, and no alert has fired."""
    lag, end = "model:perceptron_lag_records:sum", prometheus.since + seconds
    wait(lambda: prometheus.value(lag) is not None and time.time() > end, f"{seconds} s are watched", 10 * seconds)
    assert fired(prometheus) == set()


def separable(rng: random.Random) -> tuple[bytes, Any]:
    """A record of a stream that is learned quickly and well."""
    x = {f"n{i}": round(rng.gauss(0, 1), 3) for i in range(5)}
    return event(x, int(sum(x.values()) > 0)), None


def unlabelled(rng: random.Random) -> tuple[bytes, Any]:
    """An event of the same stream, without its label."""
    return json.dumps(json.loads(separable(rng)[0]) | {"id": rng.getrandbits(60), "label": None}).encode(), None


def labels_later() -> Callable[[random.Random], tuple[bytes, Any]]:
    """Makes the same stream, in which each label comes a hundred events after its event."""
    waiting = deque[dict[str, Any]]()

    def make(rng: random.Random) -> tuple[bytes, Any]:
        if len(waiting) > 100:
            return json.dumps(waiting.popleft()).encode(), None
        own = json.loads(separable(rng)[0])
        waiting.append({"id": rng.getrandbits(60), "label": own["label"]})
        return json.dumps(own | waiting[-1] | {"label": None}).encode(), None

    return make


def begin(trial: Trial, services: int = 1, replica: bool = False, settings: str = "", make: Any = separable) -> None:
    """Start a healthy model; only the replica reaches Redis through the trial's proxy."""
    trial.kind, trial.make = "plain", make
    trial.redis_address = trial.redis.address
    trial.begin(services=services, settings=settings)
    if replica:
        trial.redis_address = trial.redis_proxy.address
        trial.up(trial.service("--no-learn"))


# A fault breaks something of a healthy model, yields, and, if a repair is possible, repairs it.
Broken = Iterator[None]
Fault = Callable[[Trial], Broken]


def nothing(_: Trial) -> Broken:
    """A learner, a standby and a replica are healthy for an hour of the rules."""
    yield


def killed(trial: Trial) -> Broken:
    """The learner is killed, next to a standby."""
    learner = trial.learning()
    trial.kill(learner)
    yield
    trial.again(learner)


def stopped(trial: Trial) -> Broken:
    """A value would raise the weights beyond their limit with either label: the model stops before it."""
    trial.make = lambda rng: (event({"n0": 1e16}, rng.randrange(2)), None)
    yield


def letters_cannot_be_written(trial: Trial) -> Broken:
    """The dead-letter topic is deleted, and more is rejected than fits in memory: learning waits."""
    letters, remaining = f"{trial.topic}.dead-letters", iter(range(100))
    asyncio.run(delete_topic(trial.kafka, letters))
    trial.make = lambda rng: (b"x" * 900_000, None) if next(remaining, None) is not None else separable(rng)
    yield
    asyncio.run(create_topic(trial.kafka, letters))


def kafka_hangs(trial: Trial) -> Broken:
    """The broker hangs, with a learner and its standby."""
    with hanging(trial.kafka):
        yield


def redis_hangs(trial: Trial) -> Broken:
    """Redis hangs, with a learner and its standby."""
    with hanging(trial.redis):
        yield


def replica_cut_off(trial: Trial) -> Broken:
    """A replica cannot reach Redis, and the learner can."""
    trial.redis_proxy.refuse()
    yield
    trial.redis_proxy.heal()


def many_bad_records(trial: Trial) -> Broken:
    """One record in five is not an event."""
    short = [raw for raw in BAD if raw is not None]
    trial.make = lambda rng: (rng.choice(short), None) if rng.random() < 0.2 else separable(rng)
    yield
    trial.make = separable


def sessions_take_all_columns(trial: Trial) -> Broken:
    """Each event has a session of its own as a category: soon all hundred columns are taken."""

    def with_session(rng: random.Random) -> tuple[bytes, Any]:
        own = json.loads(separable(rng)[0])
        own["features"]["session"] = f"s{rng.getrandbits(60)}"
        return json.dumps(own).encode(), None

    trial.make = with_session
    yield
    service = trial.services[0]
    assert "columns are session=…" in service.model()["advice"][0]
    assert service.log.read_text().count("columns are taken") == 1
    trial.make = separable


def labels_missing(trial: Trial) -> Broken:
    """Events come, and no labels any more."""
    healthy, trial.make = trial.make, unlabelled
    yield
    trial.make = healthy


def labels_of_chance(trial: Trial) -> Broken:
    """Labels become independent of the features, and nine in ten are positive."""
    trial.make = lambda rng: (event(json.loads(separable(rng)[0])["features"], int(rng.random() < 0.9)), None)
    yield
    trial.make = separable


def too_many_requests(trial: Trial) -> Broken:
    """Eight clients at a time, with a limit of one."""
    with asking(trial.services[0], instances=500):
        yield


def large_requests(trial: Trial) -> Broken:
    """Forty clients, each with 10,000 instances at a time: a fast machine answers one in 10 ms."""
    with asking(trial.services[0], instances=10_000, clients=40):
        yield


@contextmanager
def asking(service: Running, instances: int, clients: int = 8) -> Iterator[None]:
    """Let clients request predictions of this many instances, continuously."""
    body = json.dumps({"instances": [{"features": {f"n{i}": 1.5 + n for i in range(20)}} for n in range(instances)]})

    def ask(stop: threading.Event) -> None:
        with httpx.Client(base_url=service.http.base_url, timeout=60) as client:
            while not stop.is_set():
                answer = client.post(f"/v1/models/{service.topic}/predict", content=body)
                assert answer.status_code in {200, 503}, answer.text

    with in_threads(*[ask] * clients):
        yield


FAULTS: dict[Fault, tuple[set[str], set[str]]] = {
    nothing: (set(), set()),
    # A session of 6 s is longer than two minutes of the rules: no process learns until the standby takes over.
    killed: ({"PerceptronDown"}, {"PerceptronNobodyLearns"}),
    stopped: ({"PerceptronNobodyLearns"}, set()),
    letters_cannot_be_written: (
        {"PerceptronLearningStalled", "PerceptronSnapshotStale", "PerceptronLagGrows"},
        set(),
    ),
    # Without a broker a process gets no records, leaves its group, and cannot check the topic before a save.
    kafka_hangs: (
        {"PerceptronDependencyMissing kafka"},
        {"PerceptronLearningStalled", "PerceptronNobodyLearns", "PerceptronSnapshotStale"},
    ),
    redis_hangs: ({"PerceptronDependencyMissing redis", "PerceptronSnapshotStale"}, set()),
    replica_cut_off: ({"PerceptronModelStale", "PerceptronDependencyMissing redis"}, set()),
    many_bad_records: ({"PerceptronEventsRejected"}, set()),
    sessions_take_all_columns: ({"PerceptronColumnsFull"}, set()),
    labels_missing: ({"PerceptronLabelsMissing"}, set()),
    labels_of_chance: ({"PerceptronQualityDrops", "PerceptronBelowBaseline"}, set()),
    too_many_requests: ({"PerceptronHttpErrors"}, {"PerceptronPredictionsSlow"}),
    large_requests: ({"PerceptronPredictionsSlow"}, set()),
}  # fmt: skip
"""The alerts that each fault must fire, and those that it may fire."""


HEALTHY: dict[Fault, dict[str, Any]] = {
    nothing: {"services": 2, "replica": True},
    killed: {"services": 2},
    kafka_hangs: {"services": 2},
    redis_hangs: {"services": 2},
    replica_cut_off: {"replica": True},
    sessions_take_all_columns: {"settings": "[model]\nmax_columns = 100"},
    labels_missing: {"settings": LATE_LABELS, "make": labels_later()},
    too_many_requests: {"settings": "http.max_in_flight = 1"},
}
"""What the model of a fault has besides a learner."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.timeout(600)
def test_a_fault_fires_its_alerts_and_no_other(trial: Trial, fault: Fault) -> None:
    """No alert fires before the fault; then the alerts of the fault do, and they end after a repair."""
    must, may = FAULTS[fault]
    begin(trial, **HEALTHY.get(fault, {}))
    with scraping_trial(trial) as prometheus:
        check_quiet(prometheus, QUIET if must else HOUR)
        with contextmanager(fault)(trial):
            wait(lambda: must <= fired(prometheus), f"{must} fire")
            assert fired(prometheus) <= must | may
        if fault is not stopped:  # which cannot be repaired
            wait(lambda: not firing(prometheus) & must, f"{must} end")
