"""Who has the event loop's next turn: a request that is under way, or a slice of learning."""

import asyncio

import pytest

from service.process import clock
from service.process.clock import LONG, SHORT, SystemClock

STEPS = 3
"""Of an answer."""


async def answer(under_way: set[int], done: list[str]) -> None:
    """A request that takes some turns of the loop."""
    for _ in range(STEPS):
        await asyncio.sleep(0)
    done.append("answer")
    under_way.clear()


async def test_requests_under_way_are_answered_before_more_is_learned() -> None:
    ours, under_way, done = SystemClock(), {1}, list[str]()
    ours.under_way = under_way
    asked = asyncio.create_task(answer(under_way, done))
    await ours.sleep(0)
    done.append("slice")
    await asked
    assert done == ["answer", "slice"]


async def test_who_is_slow_to_ask_is_not_waited_for() -> None:
    ours = SystemClock()
    ours.under_way = {1}
    await asyncio.wait_for(ours.sleep(0), 30)


async def test_topics_have_a_turn_each() -> None:
    """However many are to go on, between two of them the loop has been round once."""
    ours, order, turns = SystemClock(), list[int](), 0

    async def count() -> None:
        nonlocal turns
        while len(order) < 5:
            turns += 1
            await asyncio.sleep(0)

    async def topic() -> None:
        await ours.sleep(0)
        order.append(turns)

    await asyncio.gather(count(), *(topic() for _ in range(5)))
    assert len(set(order)) == 5


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


async def test_slices_are_short_while_one_takes_long() -> None:
    ours, under_way, done = SystemClock(), {1}, list[str]()
    ours.under_way = under_way
    asked = asyncio.create_task(answer(under_way, done))
    await ours.sleep(0)
    assert ours.slice_seconds() == LONG, "it took a few turns"
    await asked
    under_way.add(1)
    await ours.sleep(0)
    assert ours.slice_seconds() == SHORT
