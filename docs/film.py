"""The moving picture of README.md: `make film` runs the demo and looks at its page, for light and dark ones.

page-light.webp and page-dark.webp have the same moments; a picture a second would be more than a page should load.
"""

import asyncio
import io
import re
import shutil
import sys
from pathlib import Path
from typing import cast

import httpx
from PIL import Image
from playwright.async_api import Page, ViewportSize, async_playwright

from service.embedded.demo import DEMO_TOPIC
from service.embedded.servers import START_SECONDS

FOLDER = Path(__file__).parent
SIZE = ViewportSize(width=1100, height=990)
EVERY_SECONDS, SHOWN_MS, LAST_MS = 2.5, 700, 3000
SETTLED_SECONDS = 3.0
"""So long the page may take to show what was learned."""
END = "nothing lost"
"""What the demo says in the end. Then it serves on, so that the last picture too is of a service that answers."""


async def told(said: asyncio.StreamReader) -> str:
    """What it says until then."""
    lines = list[str]()
    async for line in said:
        lines.append(line.decode())
        if END in lines[-1]:
            break
    return "".join(lines)


async def standby(urls: list[str]) -> str:
    """The page of the process that does not learn: the other is killed, and its page would stand still."""
    async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as http:
        while True:
            for url, other in (urls, urls[::-1]):
                if (await http.get(f"{url}v1/models/{DEMO_TOPIC}")).json().get("learning_here"):
                    return other
            await asyncio.sleep(0.1)


async def look(pages: dict[str, Page], films: dict[str, list[Image.Image]]) -> None:
    """One more picture of each."""
    for scheme, page in pages.items():
        films[scheme].append(Image.open(io.BytesIO(await page.screenshot())).convert("RGB"))


async def film() -> None:
    """Write both, unless the demo fails."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service", "demo", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    said = cast(asyncio.StreamReader, demo.stderr)
    try:
        first = (await said.readline() + await said.readline()).decode()
        urls = re.findall(r"http://\S+", first)
        if len(urls) != 2:
            sys.exit(first)
        rest = asyncio.create_task(told(said))
        films = await watched(await standby(urls), rest)
        print(first + rest.result())
        if END not in rest.result():
            sys.exit("the demo failed")
    finally:
        if demo.returncode is None:
            demo.terminate()  # it stops its servers
            await demo.wait()
    for scheme, pictures in films.items():
        shown = [SHOWN_MS] * (len(pictures) - 1) + [LAST_MS]
        file = FOLDER / f"page-{scheme}.webp"
        pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=shown, loop=0, quality=60, method=6)


async def watched(url: str, show: asyncio.Task[str]) -> dict[str, list[Image.Image]]:
    """The pictures of the page until the show is over, by colour scheme."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pages, films = dict[str, Page](), dict[str, list[Image.Image]]()
        for scheme in ("light", "dark"):
            pages[scheme] = await browser.new_page(viewport=SIZE, color_scheme=scheme)
            films[scheme] = []
            await pages[scheme].goto(url)
            await pages[scheme].get_by_label("Log scale").check()
        while not show.done():
            await look(pages, films)
            await asyncio.wait([show], timeout=EVERY_SECONDS)
        await asyncio.sleep(SETTLED_SECONDS)
        await look(pages, films)
        await browser.close()
    return films


if __name__ == "__main__":
    asyncio.run(film())
