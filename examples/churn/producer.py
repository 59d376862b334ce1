"""Sends a telecom's customers to the topic `churn`, each with whether they left: replace `customers` by your data."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaProducer

SERVERS = os.environ.get("PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")


def customers(count: int) -> Iterator[dict[str, Any]]:
    """Generated customers. Those leave who pay much, call the support often, are new, and are bound to nothing."""
    rng = random.Random(7)
    for number in range(count):
        contract = rng.choice(("monthly", "yearly", "two years"))
        internet = rng.choice(("fibre", "dsl", "none"))
        months, calls, autopay = rng.randrange(73), min(rng.randrange(12), rng.randrange(12)), rng.random() < 0.6
        bill = round(rng.gauss({"fibre": 75, "dsl": 45, "none": 25}[internet], 10), 2)
        risk = bill / 50 + calls / 2 - months / 24 - autopay + {"monthly": 1, "yearly": -1, "two years": -2}[contract]
        yield {
            "customer": f"C{number:06}",
            "months": months,
            "plan": {"contract": contract, "internet": internet, "autopay": autopay},
            "monthly_bill": bill,
            "support_calls": calls,
            "churned": risk + rng.gauss(0, 0.5) > 1,
        }


async def main() -> None:
    """Send them, and wait until Kafka has all of them."""
    async with AIOKafkaProducer(bootstrap_servers=SERVERS, enable_idempotence=True) as producer:
        for customer in customers(20_000):
            await producer.send("churn", json.dumps(customer).encode(), key=customer["customer"].encode())


asyncio.run(main())
