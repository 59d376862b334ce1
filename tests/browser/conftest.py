"""A real browser."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.conftest import DEADLINE, program

expect.set_options(timeout=DEADLINE * 1000)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    path = program("chromium")
    async with async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = await playwright.chromium.launch(executable_path=path, args=flags)
        yield chromium
        await chromium.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page; the test fails if a script of the page raises an error."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(DEADLINE * 1000)
    page, errors = await context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []
    await context.close()
