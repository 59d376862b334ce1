"""The animated picture of README.md: `make film` runs the demo and records its page, in light and dark colours.

page-light.webp and page-dark.webp show the same moments; a picture a second would be too large for a page to load.
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
PICTURE_INTERVAL_SECONDS, PICTURE_MS, LAST_PICTURE_MS = 2.5, 700, 3000
SETTLED_SECONDS = 3.0
"""Maximum time until the page shows the last events."""
END = "nothing logged is lost"
"""The demo prints this at its end. It continues to serve, so that the last picture shows a service that answers."""


async def read_until_end(output: asyncio.StreamReader) -> str:
    """Read the output of the demo until END; returns it."""
    lines = list[str]()
    async for line in output:
        lines.append(line.decode())
        if END in lines[-1]:
            break
    return "".join(lines)


async def standby(urls: list[str]) -> str:
    """The URL of the process that does not learn: the demo kills the other one, whose page would then stop."""
    async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as http:
        while True:
            for url, other in (urls, urls[::-1]):
                if (await http.get(f"{url}v1/models/{DEMO_TOPIC}")).json().get("learning_here"):
                    return other
            await asyncio.sleep(0.1)


async def look(pages: dict[str, Page], films: dict[str, list[Image.Image]]) -> None:
    """Add a picture of each page to its film."""
    for scheme, page in pages.items():
        films[scheme].append(Image.open(io.BytesIO(await page.screenshot())).convert("RGB"))


async def film() -> None:
    """Record and write both films, unless the demo fails."""
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service", "demo", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    output = cast(asyncio.StreamReader, demo.stderr)
    try:
        first_lines = (await output.readline() + await output.readline()).decode()
        urls = re.findall(r"http://\S+", first_lines)
        if len(urls) != 2:
            sys.exit(first_lines)
        remaining = asyncio.create_task(read_until_end(output))
        films = await record(await standby(urls), remaining)
        print(first_lines + remaining.result())
        if END not in remaining.result():
            sys.exit("the demo failed")
    finally:
        if demo.returncode is None:
            demo.terminate()  # it stops its servers
            await demo.wait()
    for scheme, pictures in films.items():
        durations = [PICTURE_MS] * (len(pictures) - 1) + [LAST_PICTURE_MS]
        file = FOLDER / f"page-{scheme}.webp"
        pictures[0].save(
            file, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=60, method=6
        )


async def record(url: str, demo: asyncio.Task[str]) -> dict[str, list[Image.Image]]:
    """The pictures of the page until the demo ends, by colour scheme."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pages, films = dict[str, Page](), dict[str, list[Image.Image]]()
        for scheme in ("light", "dark"):
            pages[scheme] = await browser.new_page(viewport=SIZE, color_scheme=scheme)
            films[scheme] = []
            await pages[scheme].goto(url)
            await pages[scheme].get_by_label("Log scale").check()
        while not demo.done():
            await look(pages, films)
            await asyncio.wait([demo], timeout=PICTURE_INTERVAL_SECONDS)
        await asyncio.sleep(SETTLED_SECONDS)
        await look(pages, films)
        await browser.close()
    return films


if __name__ == "__main__":
    asyncio.run(film())
