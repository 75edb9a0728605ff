"""The page of the FastAPI example in a real browser."""

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.support.browsers import NARROW, WIDE
from tests.support.example_sites import PASSWORDS, running_example

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with running_example("fastapi", tmp_path_factory.mktemp("fastapi")) as site:
        yield site


@pytest.fixture
def page(browser, example):
    """Return the browser of a user who has logged in."""
    browser.open(example.url)
    browser.find("[name=name]").send_keys("alice")
    browser.find("[name=password]").send_keys(PASSWORDS["alice"] + Keys.ENTER)
    browser.find("#preview strong")
    return browser


def fill(page, **fields):
    for name, value in fields.items():
        element = page.find(f"#form [name={name}]")
        if element.tag_name == "select":
            Select(element).select_by_value(value)
        else:
            element.clear()
            element.send_keys(value)


def test_a_user_previews_creates_pauses_and_runs_a_reminder(page):
    # A preview of an expression that is not complete yet.
    page.expect_error("422")
    fill(page, name="Stand up", text=EVIL, rule="cron", cron="0 9 * * mon-fri")
    page.find("#preview strong", "At 09:00, Monday to Friday, UTC")
    assert len(page.texts("#preview li")) == 5
    page.find("[name=cron]").send_keys(Keys.ENTER)

    page.find("#message", "Stand up is created.")
    page.find("#list p", EVIL)
    page.find("[aria-label='Run now Stand up']").click()

    def has_succeeded(_):
        # The list is loaded again after the click.
        page.find("[aria-label='History Stand up']").click()
        return any("succeeded" in text for text in page.texts(".history li"))

    page.wait(has_succeeded, "no run has succeeded")
    page.find("[aria-label='Pause Stand up']").click()
    page.find(".badge.paused", "paused")
    for scheme, width in (("light", WIDE), ("dark", NARROW)):
        page.prefer(scheme)
        page.resize(width)
        assert page.accessibility_errors() == []
        assert page.overflow() == 0
        page.screenshot(f"fastapi-{scheme}")
