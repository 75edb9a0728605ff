"""The list of schedules in a real browser, with a real beat and worker."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from celery_dynbeat import Cron, Every
from tests.support.browsers import NARROW

SECRET = "alice:secret"


@pytest.fixture(scope="module")
def schedules(page_site):
    """Return the calls across owners of an installation with schedules of three owners."""
    for owner in ("user:1", "user:2", "acme corp"):
        mine = page_site.dynbeat.schedules.for_owner(owner)
        for name in ("digest", "report", "sync"):
            trigger = Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
            mine.create(name, task="probe.record", trigger=trigger, tags=["vip"])
    page_site.create_once("ended", task="probe.record")
    page_site.wait_for_run("ended", "succeeded")
    return page_site.dynbeat.schedules


@pytest.fixture
def list_url(flower_with, schedules):
    """Return the URL of the list in a Flower with basic authentication."""
    assert schedules.list()
    return f"{flower_with(basic_auth=SECRET).url}/dynbeat/schedules"


@pytest.fixture
def page(browser, list_url):
    """Return the browser with the list."""
    browser.log_in(list_url, SECRET)
    return browser


def select(browser, owner):
    for row in browser.find_all("[data-row]"):
        if row.find_element("css selector", ".db-owner").text == owner:
            box = row.find_element("css selector", "input")
            # Not below the actions at the bottom of the window.
            into_view = "arguments[0].scrollIntoView({block: 'center'})"
            browser.driver.execute_script(into_view, box)
            box.click()


def states(schedules, owner):
    return {info.state for info in schedules.list(owner=owner)}


def test_the_list_is_accessible_and_fits_each_width_and_theme(page):
    page.find(".db-overview-items")
    page.find("[data-count='']", text="10")
    select(page, "user:2")
    for theme in ("light", "dark"):
        page.prefer(theme)
        assert page.accessibility_errors() == []
        page.screenshot(f"schedules-list-{theme}")
    page.resize(NARROW)
    page.screenshot("schedules-list-narrow")
    assert page.overflow() == 0


def test_a_run_that_ended_is_in_the_strip_of_its_schedule(page, schedules):
    [run] = schedules.runs(owner="user:1", limit=1)

    mark = page.find(".dynbeat-strip a.dynbeat-mark")
    mark.click()

    assert page.driver.current_url.endswith(f"/dynbeat/run/{run.id}")


def test_keys_search_and_move_between_rows(page):
    def press(key):
        ActionChains(page.driver).send_keys(key).perform()
        return page.driver.switch_to.active_element

    rows = page.find_all("[data-row]")
    assert [press(key) for key in "jjk"] == [rows[0], rows[1], rows[0]]
    assert press("/") == page.find("[data-search]")
    assert press(Keys.ESCAPE) == page.find("body")


def test_selected_schedules_are_paused_and_resumed_after_one_question(page, schedules):
    pause = page.find("button", text="Pause")
    assert not pause.is_enabled()
    select(page, "user:2")
    page.find("[data-selected-count]", text="3 selected")

    pause.click()
    page.find("h1", text="Pause 3 schedules?")
    assert states(schedules, "user:2") == {"active"}
    page.find("[name=reason]").send_keys("holiday")
    page.find("button", text="Pause 3 schedules").click()

    page.find(".db-message", text="Paused 3 schedules.")
    assert states(schedules, "user:2") == {"paused"}
    [change, *_] = schedules.changes(owner="user:2", limit=1)
    assert (change.actor, change.reason) == ("alice", "holiday")

    select(page, "user:2")
    page.find("button", text="Resume").click()
    page.find("button", text="Resume 3 schedules").click()
    page.find(".db-message", text="Resumed 3 schedules.")
    assert states(schedules, "user:2") == {"active"}


@pytest.mark.quick
def test_run_now_reaches_the_worker(page, page_site, schedules):
    del schedules
    page_site.mine.create("manual", task="probe.record", trigger=Every(86_400))
    page.open(f"{page.driver.current_url}?name=manual")
    select(page, "user:1")

    page.find("button", text="Run now").click()
    page.find("button", text="Run 1 schedule").click()

    page.find(".db-message", text="Requested a run of “manual of user:1”.")
    assert page_site.wait_for_run("manual", "succeeded").origin == "manual"
    page_site.mine.delete("manual")


def test_the_list_works_without_scripts(page, list_url, schedules):
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.open(list_url)
    page.find("[data-search]").send_keys('owner:"acme corp"', Keys.ENTER)
    page.find("[data-search][value*=acme]")
    select(page, "acme corp")

    page.find("button", text="Pause").click()
    page.find("button", text="Pause 3 schedules").click()

    page.find(".db-message", text="Paused 3 schedules.")
    assert states(schedules, "acme corp") == {"paused"}
