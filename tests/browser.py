"""A real browser, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
DESKTOP: "ViewportSize" = {"width": 1440, "height": 900}
SERIOUS = {"error", "warning"}
WIDER = """() => [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".scroll, nav, .skip") && !one.parentElement.closest("svg") && one.getBoundingClientRect().right > innerWidth + 1)
    .map((one) => one.outerHTML.slice(0, 100))"""


@contextmanager
def opened_page(address: str, **context: Any) -> "Iterator[Page]":
    """A page whose charts are drawn, on a desktop in the light; whatever the browser complains of is an error."""
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_context(viewport=DESKTOP, color_scheme="light", **context).new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type in SERIOUS else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        yield page
        browser.close()
    assert complaints == []


def assert_fits(page: "Page", width: int) -> None:
    """Nothing is wider than a screen of so many pixels; tables scroll inside their box."""
    page.set_viewport_size({"width": width, "height": 900})
    for _ in range(50):  # charts follow in their own time
        if not (wider := page.evaluate(WIDER)):
            break
        page.wait_for_timeout(100)
    assert wider == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
