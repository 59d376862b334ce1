"""The main job on real servers: events in a topic become predictions, each learned once."""

import asyncio
import json
import random
import signal
import socket
import threading
from pathlib import Path

import httpx
from aiokafka import AIOKafkaProducer
from sklearn.datasets import load_breast_cancer

from service.embedded.servers import Server
from tests.conftest import Run, create_both_topics, event, perceptron, read_all, send, wait
from tests.integration.kept import random_events
from tests.kinds import BAD_NAMED
from tests.oracle import Fold, assert_model_is_fold


def test_a_file_is_learned_over_a_restart(run: Run, kafka: Server, topic: str, tmp_path: Path) -> None:
    """The breast cancer data as CSV, with positional features, twenty times."""
    settings = '[model]\nfeatures = "positional"\ndimension = 30\n'
    data = load_breast_cancer()
    half, rows = tmp_path / "half.csv", 10 * len(data.target)
    lines = (",".join(map(repr, [*map(float, x), int(y)])) for x, y in zip(data.data, data.target, strict=True))
    half.write_text("\n".join([",".join([*data.feature_names, "target"]), *[*lines] * 10]))
    first = run(settings).up()
    command = ["-c", str(first.config), "produce", "-t", topic, "-b", kafka.address, "--label", "target"]

    def produce() -> None:
        result = perceptron(*command, str(half))
        assert (result.returncode, result.stderr) == (0, f"{rows:,} events sent to {topic}\n")

    produce()
    wait(lambda: first.model()["events"] > 0, "some are learned")
    assert first.stop() == 0
    second = run(settings).up()
    produce()
    model, weights = second.wait_for(2 * rows), second.weights()

    events = [event(list(map(float, x)), int(y)) for x, y in zip(data.data, data.target, strict=True)]
    assert_model_is_fold(Fold().fold(events * 20), model, weights)


async def test_bad_events_become_dead_letters_and_the_good_are_learned(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """5 % bad events of every kind: each is in the dead-letter topic under its key, with its bytes and its reason."""
    rng, good = random.Random(5), random_events(19 * len(BAD_NAMED))
    records: list[tuple[bytes | None, str | None]] = [(raw, None) for raw in good]
    for kind in BAD_NAMED:
        records.insert(rng.randrange(len(records) + 1), kind)
    await create_both_topics(kafka, topic, max_message_bytes=str(4 << 20))
    service = run().up()
    headers = [("trace", b"7"), ("trace", b"8")]
    for i, (raw, _) in enumerate(records):
        # The client refuses a record without key and value.
        key = f"k{i}".encode() if i % 2 or raw is None else None
        await producer.send(topic, raw, key=key, headers=headers)
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, len(records))

    assert_model_is_fold(Fold().fold(good), model, service.weights())
    expected = {i: kind for i, kind in enumerate(records) if kind[1] is not None}
    counts: dict[str, int] = {}
    for _, reason in expected.values():
        counts[str(reason)] = counts.get(str(reason), 0) + 1
    assert model["rejected"] == counts
    letters = await read_all(kafka, f"{topic}.dead-letters")
    assert [letter.key.decode() for letter in letters] == [f"{topic}-0-{i}" for i in expected]
    for (i, (raw, reason)), letter in zip(expected.items(), letters, strict=True):
        fields = dict(letter.headers)
        assert fields["reason"] == str(reason).encode(), raw
        assert (fields["topic"], fields["partition"], fields["offset"]) == (topic.encode(), b"0", str(i).encode())
        assert fields.get("key") == (f"k{i}".encode() if i % 2 or raw is None else None)
        assert list(letter.headers[-2:]) == headers
        if raw is not None and len(raw) > 900_000:
            assert raw.startswith(letter.value)
            assert len(letter.value) > 890_000
            assert fields["truncated-from"] == str(len(raw)).encode()
        else:
            assert letter.value == raw
    metrics = service.metrics()
    for reason, n in counts.items():
        assert metrics[f'perceptron_rejected_events_total{{model="{topic}",reason="{reason}"}}'] == n


async def test_sigterm_saves_answers_and_exits_0_under_load(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """The service saves everything at the end, answers each accepted request, and a restart continues from there."""
    service = run().up()
    events = random_events(20_000)
    await send(producer, topic, events)
    codes: list[int] = []

    def predict() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=10) as client:
            while True:
                try:
                    codes.append(client.post(f"/v1/models/{topic}/predict", json={"features": {"n1": 1}}).status_code)
                except httpx.TransportError:  # it has stopped listening
                    return

    threads = [threading.Thread(target=predict) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(
        wait, lambda: len(codes) > 100 and service.model()["events"] > 0, "predictions and learning"
    )
    body = b'{"features":{"n1":1}}'
    head = f"POST /v1/models/{topic}/predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(head + body[:5])
        await asyncio.to_thread(wait, lambda: service.predict(json.loads(body)).status_code == 200, "it is read")
        service.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait, lambda: service.http.get("/readyz").status_code == 503, "unready at once")
        connection.sendall(body[5:])
        answer = connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 200")
    assert "connection: close" in answer.lower()
    assert await asyncio.to_thread(service.process.wait, 60) == 0, service.log.read_text()
    for thread in threads:
        thread.join()
    assert set(codes) == {200}
    restarted = run().up()
    model = await asyncio.to_thread(restarted.wait_for, len(events))
    assert_model_is_fold(Fold().fold(events), model, restarted.weights())
