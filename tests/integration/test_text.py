"""Text from a file to answers: a CSV whose columns are not all numbers, read the same by every command."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, perceptron, read_all

SETTINGS = """
[model]
rule = "logistic-delta"
[model.event]
features = "/after"
label = "/after/left"
where = { "/op" = ["c", "u"] }
"""
COUNTRIES = ["NL", "BE", "New York", ""]


def rows() -> list[tuple[str, str, str, str, int]]:
    """Age, country, vip, note and whether one left, which those from NL do, and others who are no vip and old."""
    r = random.Random(5)
    found = []
    for _ in range(1200):
        age, country, vip = r.randint(18, 90) / 100, r.choice(COUNTRIES), r.choice(["true", "False"])
        left = country == "NL" or (vip == "False" and age > 0.6)
        found.append((r.choice([str(age), "nan", f" {age} "]), country, vip, r.choice(["", '"a, b"', "x"]), int(left)))
    return found


def test_a_csv_with_text_is_learned_fitted_and_predicted_alike(
    run: Run, kafka: Server, topic: str, tmp_path: Path
) -> None:
    """The topic's records have their parts where the settings say; `fit`, HTTP and `predict` read them so too."""
    (tmp_path / "perceptron.toml").write_text(SETTINGS)
    lines = "".join(f"{a},{c},{v},{n},{y}\n" for a, c, v, n, y in rows())
    (tmp_path / "people.csv").write_text(f"user.age,country,vip,note,label\n{lines}")
    asyncio.run(create_topic(kafka, topic))
    done = perceptron("produce", "people.csv", "-t", topic, "-b", kafka.address, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, f"1,200 events sent to {topic}\n")
    records = [json.loads(r.value) for r in asyncio.run(read_all(kafka, topic))]
    a, c, v, n, y = rows()[0]
    given: dict[str, Any] = {"country": c, "vip": v == "true", "note": n.strip('"')}
    age = {} if a == "nan" else {"user.age": float(a)}
    assert records[0] == {"after": {**age, **{k: v for k, v in given.items() if v != ""}, "left": y}, "op": "c"}

    service = run(SETTINGS).up()
    model = service.wait_for(1200)
    assert (model["events"], model["rejected"], model["skipped"]) == (1200, {}, 0)
    weights = {row["name"]: row["weight"] for row in service.weights()["weights"]}
    texts = {"country=NL", "country=BE", "country=New York", "note=a, b", "note=x"}
    assert set(weights) == {"user.age", "vip"} | texts
    assert max(weights, key=lambda name: weights[name]) == "country=NL"
    fit = ["fit", "people.csv", "--model", topic, "--max-passes", "1", "-o", "w.json"]
    (tmp_path / "perceptron.toml").write_text(SETTINGS + f'[models."{topic}"]\n')
    assert perceptron(*fit, cwd=tmp_path).returncode == 0
    fitted = json.loads((tmp_path / "w.json").read_text())
    assert dict(zip(fitted["names"], fitted["coef"], strict=True)) == weights

    answers = service.http.post(f"/v1/models/{topic}/predict", json={"events": records}).json()["predictions"]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    predict = ["predict", "-t", topic, "--url", f"http://127.0.0.1:{service.port}"]
    done = perceptron(*predict, "records.jsonl", "--json", cwd=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == answers
    right = sum(
        answer["label"] == (1 if record["after"]["left"] else -1)
        for answer, record in zip(answers, records, strict=True)
    )
    assert right > 1000
    one = b'{"after": {"user": {"age": 0.2}, "country": "NL", "note": "new"}}'
    done = perceptron(*predict, "-", "--explain", stdin=one, cwd=tmp_path)
    first, *terms = done.stdout.splitlines()
    label, score, probability, note = first.split("\t")
    assert (label, float(score) > 0, float(probability) > 0.5, note) == ("1", True, True, "(1 unknown feature)")
    assert f"\t{weights['country=NL']:+g}\tcountry=NL\t1 x {weights['country=NL']:g}" in terms
    assert [term.split("\t")[2] for term in terms if "user" in term] == ["user.age"]
