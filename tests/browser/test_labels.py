"""The page of a model of three labels whose average answers, in a real browser, of a real service and of a replica."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.conftest import Run, Running, event

LABELS = ("blue", "green", "red")
RECORDS = 90
SETTINGS = """
[models."{topic}"]
labels = ["blue", "green", "red"]
average = "recent"
serve = "average"
candidates.logistic = {{ rule = "logistic-delta", eta = 0.1 }}
"""


@pytest.mark.nightly
async def test_it_shows_what_three_labels_have(page: Page, run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    settings = SETTINGS.format(topic=topic)
    service = await asyncio.to_thread(run(settings).up)
    for i in range(RECORDS):
        await producer.send(topic, event({"a": i % 5, "b": i % 7}, LABELS[i % 3]))
    await producer.flush()
    await asyncio.to_thread(service.wait_for, RECORDS)
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#tiles dd").first).to_contain_text(str(RECORDS))
    await _shows_the_confusion(page, service)
    await _says_what_contributions_add_up_to(page)
    await _shows_many_labels_on_a_phone(page, service)
    await expect(page.get_by_role("button", name="Fill in")).to_be_enabled()
    replica = await asyncio.to_thread(run(settings, "--no-learn", create=False).up)
    await page.goto(f"http://127.0.0.1:{replica.port}/")
    await expect(page.locator("#ask-note")).to_contain_text("has no event to fill in")
    await expect(page.get_by_role("button", name="Fill in")).to_be_disabled()


async def _shows_the_confusion(page: Page, service: Running) -> None:
    """Of the last weights, since the average's is not known, and the recall of the average."""
    model, table = service.model(), page.locator("#confusion")
    heads = ["Label, and predicted by the last weights", *LABELS, "Recall of the average"]
    await expect(table.locator("th[scope=col]")).to_have_text(heads)
    await expect(table.locator("th[scope=row]")).to_have_text(LABELS)
    rows = zip(model["confusion"], model["labels"], strict=True)
    cells = [[*map(str, row), f"{100 * one['recall']['all']:.1f}\u00a0%"] for row, one in rows]
    await expect(table.locator("td")).to_have_text([cell for row in cells for cell in row])


async def _says_what_contributions_add_up_to(page: Page) -> None:
    async with page.expect_response("**/predict?explain=true") as found:
        await page.get_by_role("button", name="Predict").click()
    said: Any = await (await found.value).json()
    first, second = (one["score"] for one in said["scores"][:2])
    note = page.locator("#contributions .note")
    await expect(page.locator("#answer")).to_contain_text(f", ahead of {said['runner_up']};")
    await expect(note).to_contain_text(f", the score of {said['label']} less that of {said['runner_up']}.")
    total = (await note.inner_text()).removeprefix("The contributions add up to ").partition(", ")[0]
    assert abs(float(total) - (first - second)) <= 1e-3 * (first - second)


async def _shows_many_labels_on_a_phone(page: Page, service: Running) -> None:
    """Twelve labels are a table that scrolls in its box, and of more there are the most frequent alone."""
    now: Any = service.http.get("/page/now").raise_for_status().json()
    one, names = now["model"]["labels"][0], [f"September-{i}" for i in range(12)]
    model = now["model"] | {"labels": [one | {"label": name} for name in names]}
    answer = now | {"labels": names, "confusion": [[1000] * 12] * 12, "model": model}
    await page.route("**/page/now*", lambda route: route.fulfill(json=answer))
    table = page.locator("#confusion")
    answer |= {"labels": ["", *"bcdefghij"], "confusion": [[12_345_678] * 10] * 10}
    await expect(table.locator("th[scope=row]").first).to_have_text('""')
    await expect(table.locator("td").first).to_have_text("12M")
    assert await table.evaluate("it => it.scrollWidth <= it.parentNode.clientWidth")
    answer |= {"labels": names, "confusion": [[1000] * 12] * 12}
    await page.set_viewport_size({"width": 390, "height": 900})
    await expect(table.locator("td")).to_have_count(12 * 13)
    assert await table.evaluate("it => it.scrollWidth > it.parentNode.clientWidth")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    found: Any = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    answer |= {"labels": [*names, "one more"], "confusion": []}
    await expect(table.locator("th").first).to_have_text("Label (the most frequent)")
    await page.unroute("**/page/now*")
