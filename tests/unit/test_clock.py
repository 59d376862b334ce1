"""The process's clock: requests that are under way are answered before the next slice of learning."""

import asyncio

import pytest

from service.process import clock
from service.process.clock import LONG, SHORT, SystemClock


async def test_requests_under_way_are_answered_before_more_is_learned() -> None:
    ours, done = SystemClock(), list[str]()
    ours.under_way = under_way = {1}

    async def answer() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        done.append("answer")
        under_way.clear()

    answered = asyncio.create_task(answer())
    await ours.sleep(0)
    done.append("slice")
    await answered
    assert done == ["answer", "slice"]


async def test_slices_are_short_while_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, answered, now = SystemClock(), [0], 100.0
    ours.answered = lambda: answered[0]
    monkeypatch.setattr(ours, "now", lambda: now)
    found = []
    for later, requests in ((0.0, 0), (0.1, 1), (clock.ASKED_SECONDS / 2, 0), (clock.ASKED_SECONDS, 0)):
        now, answered[0] = now + later, answered[0] + requests
        await ours.sleep(0)
        found.append(ours.slice_seconds())
    assert found == [LONG, SHORT, SHORT, LONG]
