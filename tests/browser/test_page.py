"""The page at `/` in a real browser, of a real service that is killed and comes back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, Route, expect

from tests.conftest import DEADLINE, Run, Running, event, wait

BEARER = "a-token-of-the-page-0123456789"
HTML = "<img src=x onerror=alert(1)>"
WIDTHS = (390, 1280)
RECORDS = 120
FIT = "all => all.every((element) => element.scrollWidth <= element.clientWidth)"

SETTINGS = """
[http]
token_file = "{tokens}"
[models."{topic}"]
average = "recent"
candidates.logistic = {{ rule = "logistic-delta", eta = 0.1 }}
event.without = ["at"]
event.where = {{ "/kind" = "click" }}
[models."{topic}-plane"]
features = "positional"
dimension = 2
"""


def _event(i: int) -> bytes:
    name = HTML if i % 3 else "plain"
    features = {"at": i, "age": i % 7, "user": {"name": name}, "new": i % 2 == 0, "from": None, "tags": ["b", "a"]}
    return event(features, int(i % 7 > 3), kind="click")


@pytest.fixture
async def service(run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path) -> Running:
    """Two models behind a token: one with names, one with two numbers."""
    (tmp_path / "tokens").write_text(f"{BEARER}\n")
    running = run(SETTINGS.format(tokens=tmp_path / "tokens", topic=topic), "-t", f"{topic}-plane")
    running.http.headers["authorization"] = f"Bearer {BEARER}"
    await asyncio.to_thread(running.up)
    for i in range(RECORDS):
        await producer.send(topic, _event(i))
        await producer.send(f"{topic}-plane", event([i % 7, i % 5], int(i % 7 > i % 5)))
    await producer.send(topic, json.dumps({"kind": "click", "label": 1}).encode())
    await producer.send(topic, json.dumps({"kind": "view"}).encode())
    await producer.flush()
    await asyncio.to_thread(running.wait_for, RECORDS + 2)
    return running


@pytest.fixture
async def page(page: Page, service: Running) -> AsyncIterator[Page]:
    """The page with its token; it sends requests to its own service only, and opens no dialog."""
    origin, urls, dialogs = f"http://127.0.0.1:{service.port}/", list[str](), list[str]()
    page.on("request", lambda request: urls.append(request.url))
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await page.goto(origin)
    await expect(page.get_by_role("status").first).to_contain_text("asks for a token")
    await expect(page.locator("#main")).to_be_hidden()
    await page.get_by_label("Token").fill(BEARER)
    await page.get_by_role("button", name="Show the models").click()
    await expect(page.locator("#main")).to_be_visible()
    yield page
    assert [url for url in urls if not url.startswith(origin)] == []
    assert len(urls) > 3
    assert dialogs == []


async def _events(page: Page) -> int:
    """The number of events that the page shows."""
    return int((await page.locator("#tiles dd").first.evaluate("it => it.firstChild.data")).replace(",", ""))


async def _points(page: Page) -> int:
    """The points of the line of mistakes: one point if all are at one place."""
    line: str = await page.locator("#mistakes .main").first.get_attribute("d") or "M"
    return line.count("M") + line.count("L")


async def _until(page: Page, events: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while await _events(page) != events:  # noqa: ASYNC110 - the browser sends no signal
            await asyncio.sleep(0.05)


async def test_the_page_shows_and_asks_the_service_and_is_accessible(page: Page, service: Running, topic: str) -> None:
    await _until(page, RECORDS)
    await _shows_the_figures_of_the_service(page, service)
    await _predicts_by_keyboard(page, service)
    await _fills_in_the_newest_event(page)
    await _keeps_nothing_of_another_model(page, topic)
    await _is_accessible(page, topic)


async def _shows_the_figures_of_the_service(page: Page, service: Running) -> None:
    """Names that look like HTML are shown as text, and every part has its figures."""
    model = service.model()
    weights = page.locator("#weights")
    await expect(weights).to_contain_text(f"user.name={HTML}")
    assert await page.locator("img").count() == 0
    await expect(page.locator("#predictors")).to_contain_text("logistic")
    await expect(page.locator("#predictors")).to_contain_text(f"{100 * model['baseline']['all']:.1f} %")
    cells = await page.locator("#confusion td").all_inner_texts()
    assert [int(cell) for cell in cells] == [cell for row in model["confusion"] for cell in row]
    await expect(page.locator("#confusion th").first).to_have_text("Label, and predicted by the last weights")
    shares = (f"{100 * model[name][period]:.1f} %" for name in ("recall", "precision") for period in ("recent", "all"))
    sentence = "Label 1, of recent and of all events: recall {} and {}, precision {} and {}."
    ranked = f" Recent scores: AUC {model['auc']:.3f}, average precision {model['average_precision']:.3f}."
    await expect(page.locator("#positive")).to_have_text(sentence.format(*shares) + ranked)
    await expect(page.locator("#predictors")).to_contain_text("the label of the event before")
    await expect(page.locator("#rejected")).to_contain_text(f"missing-field1partition 0, offset {RECORDS}")
    await expect(page.locator("#rejected")).to_contain_text(f"skipped1partition 0, offset {RECORDS + 1}")
    await expect(page.locator("#version")).to_contain_text(f"State digest{model['state_digest']}")

    figures = page.locator("#mistakes")
    linear = await figures.text_content() or ""
    await page.get_by_label("Log scale").check()
    await expect(figures).not_to_have_text(linear)

    accuracy, recent = page.locator("#accuracy"), f"{100 * model['served_accuracy']['recent']:.1f}\u00a0% of recent"
    await expect(accuracy).to_have_attribute("aria-label", re.compile(re.escape(recent)))
    await expect(page.locator("#rate path.main")).to_have_count(1)  # of two points, as many as a band needs
    await expect(accuracy.locator("path.band")).to_have_count(0)
    await page.get_by_label("Of all events").check()
    await expect(accuracy.locator("path.band")).to_have_count(1)


async def _by_keyboard(page: Page, name: str, presses: int = 40) -> None:
    """Press Tab until the element with this text or label has the focus."""
    for _ in range(presses):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(
            "document.activeElement.labels?.[0]?.innerText ?? document.activeElement.innerText"
        )
        if focused == name:
            return
    raise AssertionError(f"no {name} by keyboard")


async def _predicts_by_keyboard(page: Page, service: Running) -> None:
    """The keyboard leads to the form, through it and back; the page sends what the model reads and shows the answer."""
    await page.evaluate("document.activeElement.blur()")
    await _by_keyboard(page, "To the prediction form")
    await page.keyboard.press("Enter")
    await _by_keyboard(page, "age", 2)
    await page.keyboard.type("50")  # an age that no event has
    async with page.expect_request("**/predict?explain=true") as request:
        await page.keyboard.press("Enter")
    await expect(page.locator("#answer")).to_contain_text("Predicted")
    body: Any = (await request.value).post_data_json
    features = body["features"]
    assert features["age"] == 50
    assert features.keys() == {"age", "user", "new", "from", "tags"}
    labels = await page.locator("#fields label").all_inner_texts()
    assert [label.strip() for label in labels] == ["age", "user.name", "new\ntrue\nfalse", "from", "tags"]
    answer = (
        service.http.post(f"/v1/models/{service.topic}/predict?explain=true", json={"features": features})
        .raise_for_status()
        .json()
    )
    await expect(page.locator("#answer strong")).to_have_text(str(answer["label"]))
    rows = await page.locator("#contributions tbody th").all_inner_texts()
    assert [row.partition(" = ")[0] for row in rows] == [part["name"] for part in answer["contributions"]]
    await _by_keyboard(page, "Back to the top")
    await page.keyboard.press("Enter")
    assert await page.evaluate("scrollY") == 0


async def _fills_in_the_newest_event(page: Page) -> None:
    """The button replaces what was typed."""
    age = page.locator("#fields").get_by_label("age")
    assert await age.input_value() == "50"
    await page.get_by_role("button", name="Fill in").click()
    await expect(age).not_to_have_value("50")
    assert await page.locator("#answer").inner_text() == ""


async def _keeps_nothing_of_another_model(page: Page, topic: str) -> None:
    """Neither the fields nor a late answer of the other model stay."""
    fields, models, held_requests = page.locator("#fields"), page.get_by_label("Model"), asyncio.Queue[Route]()
    await page.route("**/predict*", held_requests.put)
    await page.get_by_role("button", name="Predict").click()
    route = await held_requests.get()
    await models.select_option(f"{topic}-plane")
    await expect(fields.locator("label")).to_have_text(["0", "1"])
    async with page.expect_event("requestfinished", lambda request: request.url == route.request.url):
        await route.continue_()
    await page.evaluate("new Promise(requestAnimationFrame)")
    assert await page.locator("#answer").inner_text() == ""
    await page.unroute("**/predict*", held_requests.put)
    await models.select_option(topic)
    await expect(fields.locator("label").first).to_have_text("age")


async def _is_accessible(page: Page, topic: str) -> None:
    """Light and dark, on phone and screen, with and without the plane, axe finds no violation; nothing is too wide."""
    for model in (topic, f"{topic}-plane"):
        await page.get_by_label("Model").select_option(model)
        await expect(page.locator("#plane-card")).to_be_visible(visible=model != topic)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                violations: Any = await Axe().run(page)
                assert violations.violations_count == 0, (model, width, scheme, violations.generate_report())
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                assert await page.locator(".scroll").evaluate_all(FIT)
    assert await page.locator("#plane .mark").count() == RECORDS


@pytest.mark.nightly
async def test_the_page_says_that_the_service_is_gone_and_continues_once_it_is_back(
    page: Page, service: Running, producer: AIOKafkaProducer, topic: str
) -> None:
    """The page keeps its lines and fields, though the process has lost its history."""
    await _until(page, RECORDS)
    age = page.locator("#fields").get_by_label("age")
    await age.fill("31")
    for i in range(3):  # the page gets points before the restart
        points = await _points(page)
        await producer.send_and_wait(topic, _event(i))
        await _until(page, RECORDS + i + 1)
    await asyncio.to_thread(service.wait_for, RECORDS + 5)
    points = await _points(page)
    assert points >= 3
    await asyncio.to_thread(service.kill)
    await expect(page.get_by_role("status").first).to_contain_text("does not answer")
    await expect(page.locator("#main")).to_be_visible()
    await page.locator("#ask").scroll_into_view_if_needed()
    await expect(page.get_by_role("status").first).to_be_in_viewport()
    await asyncio.to_thread(service.start(service.command).up)
    await producer.send_and_wait(topic, _event(3))
    await _until(page, RECORDS + 4)
    await expect(page.get_by_role("status").first).to_be_empty()
    assert await _points(page) >= points
    assert await age.input_value() == "31"
    wait(lambda: service.model()["learning_here"], "it learns again")
