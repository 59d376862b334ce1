"""P9: the memory of a process, by columns and over many events, and its CPU cost while it is idle."""

import time

from bench import world
from bench.figure import Figure
from bench.start import COLUMNS, wide
from service.process.service import SETTLED_SECONDS
from tests.conftest import event, wait

ROUNDS = 2
MANY = 10**7
TOPICS = 12
IDLE_ROUNDS, IDLE_SECONDS = 3, 8.0
POSITIONAL = f"""[model]
features = "positional"
dimension = {COLUMNS}
max_features = {COLUMNS}
max_record_bytes = {8 << 20}
"""


def figures() -> list[Figure]:
    """Resident memory of the process by the operating system, after all code was compiled."""
    empty, named, positional = list[float](), list[float](), list[float]()
    topic, names = world.new_topic(), wide()
    world.fill(topic, names, len(names))
    long = world.new_topic()
    values = [event([float((i * j) % 3) for j in range(COLUMNS)], i % 2) for i in range(2)]
    world.fill(long, values, 4, compression_type="zstd", max_batch_size=8 << 20, max_request_size=8 << 20)
    for _ in range(ROUNDS):
        with world.service(world.new_topic(), "", "--create-topics") as running:
            empty.append(_kept(running) / 1e6)
        for name, settings, records, costs in ((topic, "", len(names), named), (long, POSITIONAL, 4, positional)):
            with world.service(name, settings, "--create-topics") as running:
                running.wait_for(records)
                costs.append((_kept(running) - empty[-1] * 1e6) / COLUMNS)
    what = f"a column of {COLUMNS:,}"
    return [
        Figure("P9", "a process whose model is empty", empty, 260.0, False, "MB"),
        Figure("P9", f"{what}, positional, all in one event", positional, 32.0, False, "B"),
        Figure("P9", f"{what}, named", named, 180.0, False, "B"),
        _over_many(),
        _idle(),
    ]


def _kept(running: world.Service) -> int:
    """Resident memory once the memory of the start and of the first events is freed."""
    time.sleep(SETTLED_SECONDS + 1.0)
    return running.resident()


def _over_many() -> Figure:
    topic = world.new_topic()
    values = [event([0.25 * (i % 7), 0.5 * (i % 5)], int(i % 35 > 16)) for i in range(350)]
    ratios = list[float]()
    settings = '[model]\nfeatures = "positional"\ndimension = 2\n'
    world.fill(topic, values, MANY, max_batch_size=1 << 20)
    with world.service(topic, settings, "--create-topics") as running:
        running.until(MANY // 10)
        early = running.resident()
        running.until(MANY)
        ratios.append(running.resident() / early)
    what = f"after {MANY:,} events, against a tenth of them"
    return Figure("P9", what, ratios, 1.05, False, "×")


def _idle() -> Figure:
    topics = [world.new_topic() for _ in range(TOPICS)]
    flags = [flag for topic in topics[1:] for flag in ("-t", topic)]
    shares = list[float]()
    with world.service(topics[0], "", "--create-topics", *flags) as running:
        wait(lambda: all(model["learning_here"] for model in running.http.get("/v1/models").json()["models"]), "all")
        for _ in range(IDLE_ROUNDS):
            began, used = time.monotonic(), running.cpu()
            time.sleep(IDLE_SECONDS)  # the measured time
            shares.append(100.0 * (running.cpu() - used) / (time.monotonic() - began))
    return Figure("P9", f"a learner of {TOPICS} topics without events", shares, 2.0, False, "% of a core")
