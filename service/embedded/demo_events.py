"""The demo's events: visits to a shop, as a web server would write them, and whether they ended with a purchase.

A simple rule says who buys, and no visit is close to its boundary: a vector separates the visits, so the mistake bound
is known. At one moment a sale begins, and the rule changes.

`python -m service.embedded.demo_events` prints visits without end, as JSON lines that `perceptron produce` can send to
a model without settings.
"""

import json
import random
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from service.learning.weights_file import WeightsFile

BEFORE = {
    "": -2.0, "cart.items": 1.0, "page.minutes": 0.5, "user.returning": 1.5, "user.device=phone": -1.5,
    "cart.voucher": -1.0,
}  # fmt: skip
AFTER = BEFORE | {"user.returning": -1.5, "user.device=phone": 1.5, "cart.voucher": 2.0}
"""The two rules. In the sale returning customers stay away, and vouchers bring phones. The bias is named ""."""
REFERENCE = WeightsFile([BEFORE[name] for name in BEFORE if name], BEFORE[""], [name for name in BEFORE if name])
"""The rule before the sale, which is the reference of the mistake bound."""
MARGIN = 0.15


def visits(seed: int, count: int, turn: int) -> Iterator[dict[str, Any]]:
    """`count` visits; those from number `turn` on follow the sale's rule. |w·x| is at least MARGIN times ‖w‖."""
    rng, number = random.Random(seed), 0
    while number < count:
        rule = BEFORE if number < turn else AFTER
        device, returning, voucher = rng.choice(("phone", "tablet", "laptop")), rng.random() < 0.5, rng.random() < 0.3
        items, minutes = rng.randrange(4), round(rng.uniform(0.0, 4.0), 2)
        x = {"": 1, "cart.items": items, "page.minutes": minutes, "user.returning": returning, "cart.voucher": voucher}
        x[f"user.device={device}"] = 1
        score = sum(weight * x.get(name, 0) for name, weight in rule.items())
        if abs(score) < MARGIN * sum(weight * weight for weight in rule.values()) ** 0.5:
            continue
        number += 1
        yield {
            "id": f"visit-{number}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": {"id": rng.getrandbits(32), "device": device, "returning": returning},
            "page": {"id": rng.choice(("shoes", "coats", "bags")), "minutes": minutes},
            "cart": {"items": items, "voucher": voucher},
            "bought": score > 0,
        }


if __name__ == "__main__":
    for end in (signal.SIGINT, signal.SIGPIPE):  # so that a reader can stop it
        signal.signal(end, signal.SIG_DFL)
    for visit in visits(0, sys.maxsize, sys.maxsize):
        del visit["id"], visit["at"], visit["user"]["id"]
        print(json.dumps({"label": visit.pop("bought"), "features": visit}))
