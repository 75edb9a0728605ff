"""Each page in a real browser: its look, its accessibility, its errors."""

from datetime import date

import pytest

from celery_dynbeat import Cron
from tests.support.browsers import NARROW, WIDE

#: The pages, and the items of the navigation bar that they belong to.
TABS = {
    **{each: each.capitalize() for each in ("schedules", "runs", "timeline")},
    "nodes": "Beats",
    "alerts": "Alerts",
    "owner": "Schedules",
}
PAGES = tuple(TABS)
ALICE = "alice:secret"
#: By how many pixels the content of an element is wider than the element.
CUT = "const e = document.querySelector(arguments[0]); return e.scrollWidth - e.clientWidth"

#: The classes of the elements in a page that have a vertical scrollbar.
SCROLLBARS = """
    return [...document.querySelectorAll(".db-page *")].filter(e =>
        ["auto", "scroll"].includes(getComputedStyle(e).overflowY)
        && e.scrollHeight > e.clientHeight && e.clientHeight > 0
    ).map(e => e.className)
"""


@pytest.fixture(scope="module")
def flower(flower_with):
    """Return a Flower with basic authentication: its pages have all controls."""
    return flower_with(basic_auth=ALICE)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_accessible_and_fits_each_width_and_theme(browser, flower, page):
    browser.log_in(f"{flower.url}/dynbeat/{page}", ALICE)
    browser.find("nav a.active", text=TABS[page])
    for theme in ("light", "dark"):
        browser.prefer(theme)
        assert browser.accessibility_errors() == []
        browser.screenshot(f"{page}-{theme}")
    assert browser.driver.execute_script(SCROLLBARS) == []
    browser.resize(NARROW)
    browser.find(".db-overview-items")
    browser.screenshot(f"{page}-narrow")
    assert browser.overflow() == 0
    assert browser.driver.execute_script(SCROLLBARS) == []
    assert browser.driver.execute_script(CUT, ".db-overview") == 0


def test_the_calendars_are_accessible_and_fit_each_width_and_theme(browser, flower, page_site):
    calendars, mine = page_site.dynbeat.calendars, page_site.mine
    calendars.upsert("holidays-de", dates=[date(2200, 12, day) for day in (24, 25, 26)])
    calendars.upsert("sundays", dates={date(2200, 12, 21): "a Sunday"})
    trigger = Cron("0 9 * * *").excluding(calendar="sundays")
    mine.create("digest", task="mail.send_digest", trigger=trigger)
    browser.log_in(f"{flower.url}/dynbeat/schedules", ALICE)

    browser.find("a", text="Calendars").click()
    look(browser, "calendars")
    browser.find("a[data-row-link]", text="sundays").click()
    browser.find("h1", text="sundays")
    look(browser, "calendar")
    browser.find("a[data-row-link]", text="digest").click()
    browser.find("dd a", text="sundays")

    mine.delete("digest")
    calendars.delete("sundays")
    calendars.delete("holidays-de")


def look(browser, name):
    """Check the accessibility and the width of a page, and take its screenshots."""
    browser.find(".db-overview-items")
    for theme in ("light", "dark"):
        browser.prefer(theme)
        assert browser.accessibility_errors() == []
        browser.screenshot(f"{name}-{theme}")
    browser.resize(NARROW)
    browser.screenshot(f"{name}-narrow")
    assert browser.overflow() == 0
    browser.resize(WIDE)


def test_the_time_zone_of_the_browser_is_used_and_a_choice_is_remembered(browser, flower_with):
    flower = flower_with()
    zone = {"timezoneId": "Asia/Seoul"}
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", zone)

    browser.open(f"{flower.url}/dynbeat/nodes")
    browser.find(".db-zone-toggle", text="Asia/Seoul").click()
    browser.find("a.dropdown-item", text="UTC").click()
    browser.find(".db-zone-toggle", text="UTC")
    browser.open(f"{flower.url}/dynbeat/runs")

    browser.find(".db-zone-toggle", text="UTC")
