"""Tasks end, also where one of them takes its cancellation for another's; and none ends by another's unseen."""

import asyncio
import contextlib

import pytest

from service.errors import Stuck
from service.streaming import lasting
from service.streaming.lasting import Lasting


async def _closing(said: "asyncio.Queue[str]") -> None:
    """As a Kafka client that closes: it waits for a task that it has cancelled, and goes on when it is cancelled."""
    said.put_nowait("closing")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    said.put_nowait("going on")
    await asyncio.Event().wait()


async def _group(said: "asyncio.Queue[str]") -> None:
    async with Lasting() as tasks:
        tasks.create_task(_closing(said))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "AGAIN_SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
async def test_a_task_deep_in_groups_that_takes_its_cancellation_for_another_ends() -> None:
    said = asyncio.Queue[str]()
    async with asyncio.timeout(20), Lasting() as tasks:
        work = tasks.create_task(_group(said))
        assert await said.get() == "closing"
        work.cancel()
    assert said.get_nowait() == "going on"
    assert work.cancelled()


async def _fails() -> None:
    raise ValueError("it failed")


async def _beside_one_that_fails(said: "asyncio.Queue[str]") -> None:
    async with asyncio.timeout(20), Lasting() as tasks:
        tasks.create_task(_group(said))
        assert await said.get() == "closing"
        tasks.create_task(_fails())


@pytest.mark.usefixtures("soon")
async def test_such_a_task_keeps_no_process_that_another_ends() -> None:
    said = asyncio.Queue[str]()
    with pytest.raises(ExceptionGroup) as caught:
        await _beside_one_that_fails(said)
    assert [str(error) for error in caught.value.exceptions] == ["it failed"]
    assert said.get_nowait() == "going on"


async def _leaks() -> None:
    """As a client that awaits a task that it has cancelled."""
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    await gone


async def test_a_task_that_anothers_cancellation_ends_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Lasting() as tasks:
            tasks.create_task(_leaks())
    (stuck,) = caught.value.exceptions
    assert isinstance(stuck, Stuck)
    assert str(stuck).startswith("_leaks was ended by another's cancellation")


async def test_a_task_that_is_cancelled_ends() -> None:
    async with Lasting() as tasks:
        task = tasks.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
