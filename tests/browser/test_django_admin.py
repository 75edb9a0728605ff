"""Django's admin and the element of a rule in a real browser, under a strict CSP."""

import gzip
import json
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from selenium.webdriver.common.keys import Keys

import celery_dynbeat
from celery_dynbeat import Cron, NotFoundError, Trigger
from tests.support.applications import application
from tests.support.browsers import NARROW, WIDE
from tests.support.django_site import django_site

LIST = "/admin/dynbeat/schedule/"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('django') / 'django.sqlite3'}"


@pytest.fixture(scope="module")
def address(database, tmp_path_factory):
    with django_site(tmp_path_factory.mktemp("site"), database) as found:
        yield found


@pytest.fixture
def mine(database, address):
    assert address
    with application(database) as dynbeat:
        yield dynbeat.schedules.for_owner("user:1")


@pytest.fixture
def opened(browser, address):
    """Return a function that opens a page of the admin as root."""
    browser.open(f"{address}/login/root")

    def page(path):
        browser.open(f"{address}{path}")
        return browser

    return page


def choose(browser, label, value):
    """Choose a value in a menu by key, as the keyboard does."""
    menu = browser.find(f"select[aria-label='{label}']")
    menu.send_keys(value)
    menu.send_keys(Keys.TAB)


def value_of(browser):
    return browser.driver.execute_script("return document.querySelector('dynbeat-rule').value")


def looked_at(browser, name, *, within="#content"):
    browser.resize(NARROW)
    browser.screenshot(f"{name}-narrow")
    assert browser.overflow() == 0
    browser.resize(WIDE)
    assert browser.console_errors() == []
    for theme in ("light", "dark"):
        browser.prefer(theme)
        browser.screenshot(f"{name}-{theme}")
        assert browser.accessibility_errors(within=within) == []
    # axe-core itself adds styles, which the policy refuses.
    browser.console_errors()


def test_a_schedule_is_created_with_the_keyboard(opened, mine):
    browser = opened(f"{LIST}add/")
    browser.find("#id_owner").send_keys("user:1")
    browser.find("#id_name").send_keys("from-browser")
    browser.find("#id_task").send_keys("mail.send")
    choose(browser, "How often", "Every week")
    browser.find(".dynbeat-description", text="Monday to Friday, Europe/Berlin")
    assert len(browser.find_all(".dynbeat-preview li")) == 5
    browser.find(".dynbeat-days input[value=mon]").send_keys(Keys.SPACE)
    browser.find(".dynbeat-description", text="Tuesday to Friday")
    looked_at(browser, "django-add")

    browser.find("#id_name").send_keys(Keys.ENTER)

    browser.find(".messagelist", text="was added")
    made = mine.get("from-browser")
    mine.delete("from-browser")
    assert made.rule == "0 9 * * tue,wed,thu,fri"


def test_an_error_stands_at_its_field(opened, mine):
    browser = opened(f"{LIST}add/")
    browser.find("#id_name").send_keys("wrong")
    browser.find("#id_task").send_keys("mail.send")
    choose(browser, "How often", "Own rule")
    browser.find("#id_rule").send_keys("0 25 * * *")
    browser.find(".dynbeat-error", text="Check its hour")

    browser.find("#id_name").send_keys(Keys.ENTER)

    browser.find(".field-rule .errorlist", text="Check its hour")
    looked_at(browser, "django-error")
    with pytest.raises(NotFoundError):
        mine.get("wrong")


def test_a_rule_without_a_preset_is_not_rewritten(opened, mine):
    before = mine.get("complex")
    browser = opened(f"{LIST}{before.id}/change/")
    browser.find(".dynbeat-description")
    assert value_of(browser) == before.rule
    browser.find("#id_description").send_keys("Mine")
    looked_at(browser, "django-change")

    browser.find("#id_name").send_keys(Keys.ENTER)

    browser.find(".messagelist", text="was changed")
    after = mine.get("complex")
    assert (after.description, after.rule, after.version) == ("Mine", before.rule, 2)


def test_an_instant_is_shown_on_the_clock_of_the_owner(opened, mine):
    once = mine.get("once")
    browser = opened(f"{LIST}{once.id}/change/")

    shown = browser.find("[type=datetime-local]").get_attribute("value")
    assert shown == f"{once.trigger.at.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%dT%H:%M}"
    assert value_of(browser) == once.rule


def test_the_list_shows_states_and_runs_and_pauses(opened, mine):
    browser = opened(LIST)
    browser.find(".dynbeat-failing")
    browser.find(".dynbeat-run.dynbeat-failed")
    # Django's own search has no visible label.
    looked_at(browser, "django-list", within="#changelist-form")
    browser.find(f"[name=_selected_action][value='{mine.get('digest').id}']").send_keys(Keys.SPACE)
    browser.find("[name=action]").send_keys("Pause")
    browser.find(".actions [name=reason]").send_keys("quiet")
    browser.find(".actions [name=until]").send_keys("2h", Keys.ENTER)

    browser.find(".messagelist", text="1 schedule is paused.")
    assert mine.get("digest").paused_reason == "quiet"
    browser.find("#changelist-filter a[href*='state=paused']").send_keys(Keys.ENTER)
    browser.find("#result_list .dynbeat-paused")
    assert browser.texts("#result_list .field-name") == ["digest", "paused"]
    mine.resume("digest")


def test_the_controls_have_room_on_a_telephone(opened, mine):
    browser = opened(LIST)
    browser.resize(NARROW)
    assert "Show all" not in browser.find("#toolbar").text
    assert browser.find("[name=action]").size["width"] > NARROW / 2

    browser.open(f"{browser.driver.current_url}{mine.get('digest').id}/change/")
    browser.find(".dynbeat-preview li")
    # Two rows of controls, and six of text.
    assert browser.find("dynbeat-rule").size["height"] < 300


def test_the_history_and_a_run_are_linked(opened, mine):
    browser = opened(f"{LIST}{mine.get('failing').id}/history/")
    looked_at(browser, "django-history")
    browser.find("#content a[href*='/run/']").send_keys(Keys.ENTER)
    browser.find(".field-error", text="no connection")
    looked_at(browser, "django-run")
    browser.find("#content a[href*='/schedule/']", text="user:1/failing")


#: A value -> the preset that shows it.
KEPT = {
    "PT90M": "every",
    "TZ=Asia/Seoul P2D": "every",
    "5 9 * * *": "daily",
    "CRON_TZ=Asia/Seoul 0 9 * * mon-fri": "weekdays",
    "0 9 * * sat,sun": "weekly",
    "0 9 l * *": "monthly",
    "2030-12-24T18:00:00Z": "once",
    "0 9 1,15 * *": "custom",
    "0 9 L * mon": "custom",
    "TZ=Asia/Seoul PT5M": "custom",
    "@daily": "custom",
    "full moon": "custom",
    '{"kind":"cron","spec":"0 9 * * *"}': "daily",
    '{"kind":"any_of","triggers":[]}': "custom",
}
#: A preset with its choices -> the text that they write, and its words.
WRITTEN = [
    ({"preset": "every", "count": "5", "unit": "M"}, "PT5M", "Every 5 minutes"),
    ({"preset": "every", "count": "2", "unit": "D"}, "TZ=Asia/Seoul P2D", "Every 2 days"),
    ({"preset": "daily"}, "CRON_TZ=Asia/Seoul 30 7 * * *", "At 07:30 every day"),
    ({"preset": "weekdays"}, "CRON_TZ=Asia/Seoul 30 7 * * mon-fri", "At 07:30, Monday to Friday"),
    (
        {"preset": "weekly"},
        "CRON_TZ=Asia/Seoul 30 7 * * mon,tue,wed,thu,fri",
        "At 07:30, Monday to Friday",
    ),
    (
        {"preset": "monthly", "monthDay": "L"},
        "CRON_TZ=Asia/Seoul 30 7 L * *",
        "At 07:30, on the last day of the month",
    ),
    (
        {"preset": "once", "instant": "2030-12-24T18:00"},
        "TZ=Asia/Seoul 2030-12-24T18:00",
        "Once at 2030-12-24",
    ),
]
CHOOSE = """
    const rule = document.querySelector("dynbeat-rule");
    const labels = {preset: "How often", count: "Number", unit: "Unit", monthDay: "on day",
        zone: "Time zone"};
    const chosen = {zone: "Asia/Seoul", time: "07:30", ...arguments[0]};
    for (const [name, value] of Object.entries(chosen)) {
        const types = {time: "[type=time]", instant: "[type=datetime-local]"};
        const part = rule.querySelector(types[name] || `[aria-label="${labels[name]}"]`);
        part.value = value;
        part.dispatchEvent(new Event("input", {bubbles: true}));
    }
    return rule.value;
"""


def test_the_script_is_small():
    script = Path(celery_dynbeat.__file__).parent / "django" / "static" / "dynbeat" / "rule.js"
    assert len(gzip.compress(script.read_bytes())) <= 12_000


def test_the_element_keeps_a_rule_until_it_is_edited(browser, address):
    browser.open(f"{address}/form")
    browser.find("select[aria-label='How often']")
    script = """
        const rule = document.querySelector("dynbeat-rule");
        rule.value = arguments[0];
        return [rule.value, rule.querySelector("select").value];
    """
    shown = [tuple(browser.driver.execute_script(script, rule)) for rule in KEPT]
    assert dict(shown) == KEPT


def test_the_library_reads_what_the_element_writes(browser, address):
    browser.open(f"{address}/form")
    browser.find("select[aria-label='How often']")
    for chosen, text, words in WRITTEN:
        written = browser.driver.execute_script(CHOOSE, chosen)
        assert written == text
        assert Trigger.from_text(written, timezone="Asia/Seoul").describe().startswith(words)
    browser.driver.execute_script(
        "document.querySelector('dynbeat-rule').value = arguments[0]", "{}"
    )
    written = browser.driver.execute_script(CHOOSE, {"preset": "daily"})
    # A value that was JSON stays JSON.
    assert Trigger.from_json(json.loads(written)) == Cron("30 7 * * *", timezone="Asia/Seoul")


def test_the_element_is_a_field_of_any_form(browser, address):
    browser.open(f"{address}/form")
    assert browser.driver.execute_script("return !document.forms[0].checkValidity()")
    choose(browser, "How often", "Every month")
    looked_at_form = browser.accessibility_errors()
    browser.find("button").send_keys(Keys.ENTER)

    browser.find("output", text="0 9 1 * *")
    assert looked_at_form == []


def test_the_form_works_without_scripts(browser, address):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.open(f"{address}/form")
    browser.find("textarea").send_keys("5m")
    browser.find("button").send_keys(Keys.ENTER)

    browser.find("output", text="PT5M")
