"""The live page in a real browser, from the keyboard alone: one visit, and so one test."""

from threading import Thread
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flask")

from sim.web.server import serving
from sim.web.what_if import WhatIf
from tests.browser import assert_fits, needs_chromium, opened_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = WhatIf({"trace": "chat", "limit": "20"}, {"model": "Llama-3.1-8B", "gpu": "h100-sxm"})


@needs_chromium
def test_a_visitor_changes_things_and_compares() -> None:
    server = serving(START, 0)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        with opened_page(f"http://{server.host}:{server.port}/") as page:
            a_change_is_simulated_and_shared_by_its_address(page)
            what_cannot_be_is_said_where_the_answer_was(page)
            a_second_configuration_begins_as_the_first(page)
    finally:
        server.shutdown()
        thread.join()


def typed(page: "Page", name: str, text: str) -> None:
    """Goes to a control, types and leaves it, and waits for what that changes."""
    page.locator(f"[name={name}]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Tab")
    settled(page)


def settled(page: "Page") -> None:
    page.wait_for_function("document.getElementById('answer').ariaBusy === 'false'")


def figure(page: "Page", label: str) -> str:
    return str(page.locator(".card", has_text=label).locator(".value").text_content()).strip()


def a_change_is_simulated_and_shared_by_its_address(page: "Page") -> None:
    """Fewer seats make requests wait, and the address opens the same page again."""
    before = figure(page, "P99 TTFT")
    typed(page, "max-num-seqs", "1")
    after = figure(page, "P99 TTFT")
    assert before != after
    assert "max-num-seqs=1" in page.url
    assert "--max-num-seqs 1" in page.locator("pre").first.text_content()
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert figure(page, "P99 TTFT") == after
    assert page.locator("[name=max-num-seqs]").input_value() == "1"


def what_cannot_be_is_said_where_the_answer_was(page: "Page") -> None:
    typed(page, "gpu", "h1000")
    assert "neither a known name" in page.get_by_role("alert").text_content()
    typed(page, "gpu", "h100-sxm")
    assert page.get_by_role("alert").count() == 0


def a_second_configuration_begins_as_the_first(page: "Page") -> None:
    """And is then changed by itself; both are drawn, and fit a phone."""
    page.get_by_label("Compare with another configuration").focus()
    page.keyboard.press("Space")
    settled(page)
    assert page.locator("[name=b-max-num-seqs]").input_value() == "1"
    typed(page, "b-max-num-seqs", "64")
    assert page.locator("#overview-title").text_content() == "Side by side"
    drawn = int(page.evaluate("document.documentElement.dataset.drawn"))
    assert page.locator(".chart .plot-container").count() == drawn > 8
    for width in (1440, 390):
        assert_fits(page, width)
