"""The page of a model with three labels whose average answers, in a real browser, of a learner and of a replica."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from playwright.async_api import Page, expect

from tests.conftest import Run, Running, event, send

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
async def test_it_shows_a_model_of_three_labels(page: Page, run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    settings = SETTINGS.format(topic=topic)
    service = await asyncio.to_thread(run(settings).up)
    await send(producer, topic, (event({"a": i % 5, "b": i % 7}, LABELS[i % 3]) for i in range(RECORDS)))
    await asyncio.to_thread(service.wait_for, RECORDS)
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#tiles dd").first).to_contain_text(str(RECORDS))
    await _shows_the_confusion(page, service)
    await _shows_the_sum_of_contributions(page)
    await expect(page.get_by_role("button", name="Fill in")).to_be_enabled()
    replica = await asyncio.to_thread(run(settings, "--no-learn", create=False).up)
    await page.goto(f"http://127.0.0.1:{replica.port}/")
    await expect(page.locator("#ask-note")).to_contain_text("has no event to fill in")
    await expect(page.get_by_role("button", name="Fill in")).to_be_disabled()


async def _shows_the_confusion(page: Page, service: Running) -> None:
    """The confusion is that of the last weights, since the average has none; the recall is that of the average."""
    model, table = service.model(), page.locator("#confusion")
    heads = ["Label, and predicted by the last weights", *LABELS, "Recall of the average"]
    await expect(table.locator("th[scope=col]")).to_have_text(heads)
    await expect(table.locator("th[scope=row]")).to_have_text(LABELS)
    rows = zip(model["confusion"], model["labels"], strict=True)
    cells = [[*map(str, row), f"{100 * label['recall']['all']:.1f}\u00a0%"] for row, label in rows]
    await expect(table.locator("td")).to_have_text([cell for row in cells for cell in row])


async def _shows_the_sum_of_contributions(page: Page) -> None:
    async with page.expect_response("**/predict?explain=true") as response:
        await page.get_by_role("button", name="Predict").click()
    answer: Any = await (await response.value).json()
    first, second = (score["score"] for score in answer["scores"][:2])
    note = page.locator("#contributions .note")
    await expect(page.locator("#answer")).to_contain_text(f", ahead of {answer['runner_up']};")
    await expect(note).to_contain_text(f", the score of {answer['label']} less that of {answer['runner_up']}.")
    total = (await note.inner_text()).removeprefix("The contributions add up to ").partition(", ")[0]
    assert abs(float(total) - (first - second)) <= 1e-3 * (first - second)
