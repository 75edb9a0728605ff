"""The form of a schedule in a real browser: preview while typing, picker, conflict."""

from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.keys import Keys

from celery_dynbeat import Cron
from tests.support.browsers import NARROW
from tests.support.sites import OWNER

ALICE = "alice:secret"
SHOWN = {
    "task": "mail.send_digest",
    "trigger": Cron("0 9 * * mon-fri", timezone="Asia/Seoul"),
    "kwargs": {"user_id": 42, "sections": ["news", "billing"], "format": "html", "limit": 25},
    "queue": "mail",
    "tags": ["mail", "vip"],
    "description": "The morning digest.\nOne for each user.",
    "overlap": "skip",
    "window": 60,
}


@pytest.fixture(scope="module")
def flower(flower_with):
    return flower_with(basic_auth=ALICE)


@pytest.fixture
def opened(browser, flower, page_site, request):
    """Return a function that opens the form of a new schedule, or of one with these fields."""
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    browser.log_in(f"{flower.url}/dynbeat/new", ALICE)

    def form(name=None, **fields):
        if name is None:
            browser.open(f"{flower.url}/dynbeat/new")
        else:
            page_site.mine.create(name, **{**SHOWN, **fields})
            request.addfinalizer(lambda: page_site.mine.delete(name))
            browser.open(edit_url(flower, name))
        return browser

    return form


def edit_url(flower, name):
    return f"{flower.url}/dynbeat/edit?{urlencode({'owner': OWNER, 'name': name})}"


def replace(browser, selector, text):
    element = browser.find(selector)
    element.send_keys(Keys.CONTROL, "a")
    element.send_keys(text)


def choose(browser, preset):
    browser.find("select[aria-label='How often']").send_keys(preset)


def rule_in(browser):
    return browser.driver.execute_script("return document.querySelector('dynbeat-rule').value")


def press(browser, selector, text=""):
    """Press a button or link by key: Bootstrap scrolls smoothly, so a click could miss it."""
    browser.find(selector, text=text).send_keys(Keys.ENTER)


def save(browser):
    press(browser, ".db-save button.btn-primary")


def is_accessible_in_both_themes(browser, name):
    for theme in ("light", "dark"):
        browser.prefer(theme)
        browser.screenshot(f"{name}-{theme}")
        assert browser.accessibility_errors() == []


def test_a_schedule_is_created_with_the_picker_and_a_live_preview(browser, opened, page_site):
    opened()
    browser.find("#db-name").send_keys("from-browser")
    browser.find("#db-owner").send_keys(OWNER)
    browser.find("#db-task").send_keys("probe.form")
    choose(browser, "Every week")
    browser.find(".dynbeat-days [value=mon]").send_keys(Keys.SPACE)
    browser.find(".db-sentence", text="At 09:00, Tuesday to Friday")
    assert rule_in(browser) == "0 9 * * tue,wed,thu,fri"
    browser.find("dynbeat-rule [aria-label='Time zone']").send_keys("Asia/Seoul")
    browser.find(".db-fire-times th", text="Asia/Seoul")
    assert rule_in(browser) == "CRON_TZ=Asia/Seoul 0 9 * * tue,wed,thu,fri"
    browser.find(".db-fire-note", text="your time")
    is_accessible_in_both_themes(browser, "editor-new")

    save(browser)

    browser.find(".db-message", text="'from-browser' was created")
    made = page_site.mine.get("from-browser")
    page_site.mine.delete("from-browser")
    assert made.given_trigger == Cron("0 9 * * tue,wed,thu,fri", timezone="Asia/Seoul")
    [change] = [each for each in page_site.mine.changes("from-browser") if each.action == "create"]
    assert change.actor == "alice"


def test_the_error_stands_at_its_field_while_one_types(browser, opened):
    opened("typed")
    choose(browser, "Own rule")
    replace(browser, "#db-rule", "CRON_TZ=Asia/Seoul 0 25 * * *")
    browser.find("[data-error=rule]", text="25")
    assert browser.find("#db-rule").get_attribute("aria-invalid") == "true"

    replace(browser, "#db-rule", "CRON_TZ=Asia/Seoul 0 23 * * *")

    browser.find(".db-sentence", text="At 23:00 every day")
    assert browser.texts("[data-error=rule]") == [""]
    browser.find("#db-kwargs").send_keys("}")
    browser.find("[data-error=kwargs]", text="line ")
    is_accessible_in_both_themes(browser, "editor-error")


def test_only_the_answer_to_the_last_text_is_shown(browser, opened):
    """The answer to an older text arrives later than that to a newer one."""
    opened("raced")
    choose(browser, "Own rule")
    # The first answer waits until the second one is shown.
    browser.driver.execute_script(
        """
        const real = window.fetch;
        let calls = 0;
        window.release = null;
        window.fetch = function (url, options) {
            calls += 1;
            if (calls > 1) { return real(url, options); }
            const held = new Promise(done => { window.release = done; });
            return real(url, {...options, signal: undefined}).then(
                answer => held.then(() => answer));
        };
        """
    )
    replace(browser, "#db-rule", "CRON_TZ=Asia/Seoul 0 1 * * *")
    browser.wait(lambda _: browser.driver.execute_script("return !!window.release"), "no request")
    replace(browser, "#db-rule", "CRON_TZ=Asia/Seoul 0 2 * * *")
    browser.find(".db-sentence", text="At 02:00 every day")

    browser.driver.execute_async_script(
        "window.release(); setTimeout(arguments[arguments.length - 1], 0)"
    )

    assert browser.texts(".db-sentence") == ["At 02:00 every day, Asia/Seoul"]


def test_a_conflict_shows_both_versions_and_saves_on_request(browser, opened, page_site):
    opened("shared")
    before = page_site.mine.get("shared").given_trigger
    with page_site.dynbeat.acting(actor="bob", reason="quieter"):
        page_site.mine.update("shared", trigger=Cron("0 10 * * *", timezone="Asia/Seoul"))
    replace(browser, "#db-description", "Mine")
    browser.expect_error("409")

    save(browser)

    browser.find(".db-conflict", text="bob")
    browser.find(".db-conflict td", text="0 10 * * *")
    is_accessible_in_both_themes(browser, "editor-conflict")
    press(browser, ".db-conflict button", "Save my version")
    browser.find(".db-message", text="was saved")
    info = page_site.mine.get("shared")
    assert (info.description, info.given_trigger) == ("Mine", before)


def test_the_form_fits_a_telephone(browser, opened):
    opened("narrow")
    browser.find(".db-fire-times")
    is_accessible_in_both_themes(browser, "editor-edit")
    browser.resize(NARROW)
    browser.screenshot("editor-edit-narrow")
    assert browser.overflow() == 0
