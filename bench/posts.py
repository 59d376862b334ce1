"""P12: what it costs to log predictions, and events a second that are posted over HTTP."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from bench import world
from bench.figure import Figure
from bench.predictions import CONNECTIONS, FEW_CONNECTIONS, SECONDS, Rates, Serving, names

ROUNDS = 15
BATCH = 1000
"""The events of one post."""
SETTINGS = """
[models.plain]
topic = "{plain}"
[models.logged]
topic = "{logged}"
[models.posted]
topic = "{posted}"
[models.logged.predictions]
topic = "{log}"
"""
SCRIPT = """
local before, after, i = {before}, {after}, 0
local headers = {{ ["content-type"] = "application/json" }}
request = function()
  i = i + 1
  return wrk.format("POST", nil, headers, before .. i .. after)
end
done = function(summary, latency)
  local e = summary.errors
  print(string.format('{{"answers": %d, "seconds": %f, "bad": %d}}', summary.requests, summary.duration / 1e6,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def figures() -> list[Figure]:
    """Predictions with an id, in turns to a model that logs them and to one that does not; then posts of events."""
    rng = random.Random(1)

    def row() -> dict[str, float]:
        return {name: round(rng.gauss(0, 1), 3) for name in names()}

    forever: dict[str, Any] = {"retention.ms": "-1"}
    topics = {name: world.new_topic(name, **forever) for name in ("plain", "logged", "posted", "log")}
    events = json.dumps({"events": [{"features": row(), "label": i % 2} for i in range(BATCH)]})
    with tempfile.TemporaryDirectory() as folder, world.service("", SETTINGS.format(**topics)) as running:
        ask = _script(Path(folder) / "ask.lua", '{"id":"r-', f'","features":{json.dumps(row())}}}')
        post = _script(Path(folder) / "post.lua", events, "", numbered=False)
        rates: dict[str, list[Rates]] = {"plain": [], "logged": [], "events": []}
        for round_ in range(ROUNDS + 1):
            for model in ("plain", "logged"):
                serving = Serving(running.port, running.process.pid, f"/v1/models/{model}/predict")
                if not round_:  # both know the same names
                    serving._replace(path=f"/v1/models/{model}/events").ask(post, 1, 1)
                rates[model].append(serving.ask(ask, CONNECTIONS, SECONDS))
            serving = Serving(running.port, running.process.pid, "/v1/models/posted/events")
            rates["events"].append(serving.ask(post, FEW_CONNECTIONS, SECONDS))
    warm = {name: rounds[1:] for name, rounds in rates.items()}
    logged, plain, posts = (warm[name] for name in ("logged", "plain", "events"))
    ratios = [a.per_second / b.per_second for a, b in zip(logged, plain, strict=True)]
    in_cpu = [a.per_cpu_second / b.per_cpu_second for a, b in zip(logged, plain, strict=True)]
    what = f"predictions of {len(names())} features with an id, logged, against not logged"
    posted = [BATCH * each.per_second for each in posts]
    return [
        Figure("P12", what, ratios, 0.85, True, "×"),
        Figure("P12", "the same in processor time", in_cpu, 0.85, True, "×"),
        Figure("P12", f"events by POST, {BATCH:,} at a time", posted, 60_000, True, "a second"),
    ]


def _script(file: Path, before: str, after: str, numbered: bool = True) -> Path:
    """Write a script of wrk whose bodies have a rising number between two texts, if they are numbered."""
    text = SCRIPT.format(before=f"[==[{before}]==]", after=f"[==[{after}]==]")
    file.write_text(text if numbered else text.replace(".. i ..", ".."))
    return file
