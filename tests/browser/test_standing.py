"""The page says which process learns, and since when Kafka or Redis is away; in a real browser."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from service.embedded import servers
from tests.conftest import Run

pytestmark = pytest.mark.nightly
TIME = r"\d\d:\d\d:\d\d"


async def test_it_says_since_when_kafka_and_redis_do_not_answer(page: Page, run: Run, tmp_path: Path) -> None:
    """The notice says what follows from that, and disappears when they are back."""
    with servers.start_kafka(tmp_path) as kafka, servers.start_redis(tmp_path) as redis:
        service = run(kafka_address=kafka.address, redis_address=redis.address)
        await asyncio.to_thread(service.up)
        await page.goto(f"http://127.0.0.1:{service.port}/")
        notice, lag = page.get_by_role("status").first, page.locator("#tiles dd").nth(2)
        await expect(page.locator("#state")).to_have_text("Learning here")
        await expect(notice).to_be_empty()
        await expect(lag).to_have_text("0records to be learned")
        for server, notice_text in (
            (redis, f"^Redis has not answered since {TIME}, so nothing is saved. $"),
            (kafka, f"^Kafka has not answered since {TIME}, so nothing new is learned. $"),
        ):
            server.kill()
            await expect(notice).to_have_text(re.compile(notice_text))
            await expect(lag).to_have_text("–not known without Kafka" if server is kafka else "0records to be learned")
            await asyncio.to_thread(server.start)
            await expect(notice).to_be_empty()
            await expect(lag).to_have_text("0records to be learned")


async def test_a_restarted_process_waits_to_take_over_and_a_standby_follows(page: Page, run: Run) -> None:
    """A restarted process waits for the consumer group; a standby follows another process."""
    service, state = await asyncio.to_thread(run(session_timeout=6.0).up), page.locator("#state")
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(state).to_have_text("Learning here")
    service.kill()
    await expect(page.get_by_role("status").first).to_contain_text("does not answer")
    await asyncio.to_thread(service.start(service.command).up)
    await expect(state).to_have_text("Waiting to take over")
    await expect(state).to_have_text("Learning here")
    standby = await asyncio.to_thread(run().up)
    await page.goto(f"http://127.0.0.1:{standby.port}/")
    await expect(state).to_have_text(re.compile(r"^Following another process \(\S+:\d+ saved last\)$"))
