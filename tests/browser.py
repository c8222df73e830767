"""A real browser, which all tests of pages in a process share."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

LONG_MS = 20_000
SCREENSHOTS = Path(__file__).parents[1] / "test-output" / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium, as the system installed it."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None and os.environ.get("CI") == "true":
        pytest.fail("CI must test pages in Chromium, which is not here: apt-get install chromium")
    if executable is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a fresh profile; afterwards nothing may have been said or left."""
    said: list[str] = []
    foreign: list[str] = []
    contexts = []

    def opened(url: str, **options) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: said.append(f"error: {e}"))
        page.on("dialog", lambda d: said.append(f"dialog: {d.message}"))
        host = urlsplit(url).netloc
        own = (f"http://{host}", "data:", "blob:")
        page.on("request", lambda r: r.url.startswith(own) or foreign.append(r.url))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert foreign == []


@pytest.fixture(scope="session")
def keep() -> Callable[[Page, str], None]:
    """Keep a picture of a page, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return lambda page, name: page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
