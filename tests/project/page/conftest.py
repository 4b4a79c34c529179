"""A real browser, in which every person has a context of their own."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from page_browser import chromium

ALONE = [  # it speaks to nobody but the page
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--host-resolver-rules=MAP phone.test 127.0.0.1",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(playwright.chromium.executable_path), args=ALONE)
        yield started
        started.close()


@pytest.fixture
def new_context(browser):
    """Makes contexts, each a browser of its own; no request of any of them leaves this machine."""
    contexts, asked = [], set()

    def make(width=1200, height=800, scheme="light", **more):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        context.on("request", lambda request: asked.add(request.url.split("/")[2].rpartition(":")[0]))
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert asked <= {"127.0.0.1", "phone.test"}


@pytest.fixture
def check_access():
    """Checks a page: nothing that axe calls serious, and nothing wider than the screen."""
    axe = Axe()

    def check(page):
        found = [each for each in axe.run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= page.viewport_size["width"]

    return check
