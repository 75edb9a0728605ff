"""One schedule, its runs and the timeline in a real browser, with a real beat and worker."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from celery_dynbeat import Cron, Every
from tests.support.browsers import NARROW
from tests.support.waiting import wait_until

SECRET = "alice:secret"
DAILY = Cron("0 9 * * *", timezone="Asia/Seoul")


@pytest.fixture(scope="module")
def mine(page_site):
    """Return the calls of an owner with a schedule that ran, and one that failed."""
    page_site.mine.create("sync", task="probe.record", trigger=Every(2), tags=["vip"])
    page_site.mine.create("bad", task="no.such.task", trigger=Every(2))
    page_site.wait_for_run("sync", "succeeded")
    page_site.wait_for_run("bad", "failed")
    page_site.mine.update("sync", trigger=DAILY)
    page_site.mine.update("bad", trigger=DAILY)
    return page_site.mine


@pytest.fixture
def open_page(browser, flower_with, mine):
    """Return a function that opens a page as alice and returns the browser."""
    assert mine.get("sync")
    flower = flower_with(basic_auth=SECRET)
    browser.log_in(f"{flower.url}/dynbeat/nodes", SECRET)

    def opened(path):
        browser.open(f"{flower.url}/dynbeat/{path}")
        return browser

    return opened


def schedule_path(mine, name):
    return f"schedule?owner={mine.owner}&name={name}"


def press(browser, label):
    browser.find("button", text=label).click()


@pytest.mark.parametrize("name", ["sync", "bad"])
def test_a_schedule_is_accessible_and_fits_each_width_and_theme(open_page, mine, name):
    page = open_page(schedule_path(mine, name))
    page.find(".dynbeat-calendar")
    for theme in ("light", "dark"):
        page.prefer(theme)
        assert page.accessibility_errors() == []
        page.screenshot(f"schedule-{name}-{theme}")
    page.resize(NARROW)
    page.screenshot(f"schedule-{name}-narrow")
    assert page.overflow() == 0


def test_a_failed_run_is_accessible_and_runs_again(open_page, mine):
    page = open_page("runs?status=failed")
    page.find("a[data-row-link]").click()
    page.find("h1", text="bad")
    for theme in ("light", "dark"):
        page.prefer(theme)
        assert page.accessibility_errors() == []
    page.screenshot("run")

    press(page, "Rerun")

    page.find(".db-message", text="Recorded a rerun.")
    wait_until(lambda: list(mine.runs("bad", origin="rerun", status="failed")), within=15)


def test_each_action_on_a_schedule(open_page, mine):
    page = open_page(schedule_path(mine, "sync"))
    before = len(mine.runs("sync", origin="manual"))
    press(page, "Run now")
    page.find(".db-message", text="Requested a run")
    wait_until(lambda: len(mine.runs("sync", origin="manual")) == before + 1, within=15)

    press(page, "Pause")
    page.find(".db-message", text="Paused")
    assert not mine.get("sync").enabled
    press(page, "Resume")
    page.find(".db-message", text="Resumed")
    press(page, "Pause until…")
    page.find("h1", text="Pause “sync")
    page.find("#db-reason").send_keys("holiday")
    Select(page.find("#db-until")).select_by_visible_text("4 h")
    assert page.accessibility_errors() == []
    press(page, "Pause 1 schedule")
    page.find(".db-message", text="Until ")
    paused = mine.get("sync")
    assert (paused.paused_reason, paused.paused_until is None) == ("holiday", False)
    press(page, "Resume")
    page.find(".db-message", text="Resumed")
    press(page, "Skip next")
    page.find(".db-message", text="skips")
    press(page, "Unskip")
    page.find(".db-message", text="runs again at")

    press(page, "Hold owner")
    page.find("#db-reason").send_keys("incident 7")
    press(page, "Hold")
    page.find(".db-banner", text="incident 7")
    press(page, "Release owner")
    page.find(".db-message", text="is released")
    actions = [each.action for each in mine.changes("sync", limit=7)]
    assert actions == ["unskip", "skip", "resume", "pause", "resume", "pause", "run_now"]
    assert {each.actor for each in mine.changes("sync", limit=7)} == {"alice"}


def test_a_schedule_is_deleted_after_a_confirmation(open_page, mine):
    mine.create("gone", task="probe.record", trigger=DAILY)
    page = open_page(schedule_path(mine, "gone"))
    page.expect_error("404 (Not Found)")

    press(page, "Delete")
    page.find("h1", text="Delete “gone")
    assert mine.get("gone")
    press(page, "Delete")

    page.find("h1", text="has no schedule “gone”")


def test_the_timeline_moves_when_it_is_dragged(open_page):
    page = open_page("timeline?window=1h")
    chart = page.find(".db-timeline-chart")
    since = page.find("#db-timeline").get_attribute("data-since")

    drag = ActionChains(page.driver).move_to_element(chart).click_and_hold()
    drag.move_by_offset(200, 0).release().perform()

    page.wait(lambda _: "since=" in page.driver.current_url, "a fixed window")
    assert page.find("#db-timeline").get_attribute("data-since") < since


def test_the_arrow_keys_move_between_the_runs_of_a_schedule_and_show_their_titles(open_page, mine):
    mine.run_now("sync")
    wait_until(lambda: len(mine.runs("sync", status="succeeded").items) > 1, within=30)
    page = open_page(f"schedules?owner={mine.owner}")
    # The strip with several runs, whose newest one is the tab stop.
    newest = page.find(".dynbeat-strip a[tabindex] ~ a:not([tabindex])")
    page.driver.execute_script("arguments[0].focus()", newest)
    title = page.find(".dynbeat-tooltip").text

    ActionChains(page.driver).send_keys(Keys.ARROW_LEFT).perform()

    assert page.find(".dynbeat-tooltip").text not in {"", title}
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert page.find_all(".dynbeat-tooltip:not([hidden])") == []
