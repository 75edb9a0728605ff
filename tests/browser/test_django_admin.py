"""Django's admin and the element of a rule in a real browser, under a strict CSP."""

from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from selenium.webdriver.common.keys import Keys

from celery_dynbeat import NotFoundError
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
        mine.bound().get("wrong")


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


def test_the_history_and_a_run_are_linked(opened, mine):
    browser = opened(f"{LIST}{mine.get('failing').id}/history/")
    looked_at(browser, "django-history")
    browser.find("#content a[href*='/run/']").send_keys(Keys.ENTER)
    browser.find(".field-error", text="no connection")
    looked_at(browser, "django-run")
    browser.find("#content a[href*='/schedule/']", text="user:1/failing")


@pytest.mark.parametrize(
    ("rule", "preset", "edited"),
    [
        ("PT90M", "every", None),
        ("TZ=Asia/Seoul P2D", "every", None),
        ("5 9 * * *", "daily", None),
        ("CRON_TZ=Asia/Seoul 0 9 * * mon-fri", "weekdays", None),
        ("0 9 * * sat,sun", "weekly", None),
        ("0 9 L * *", "monthly", None),
        ("2030-12-24T18:00:00Z", "once", None),
        ("0 9 1,15 * *", "custom", None),
        ("*/5 * * * *", "custom", None),
        ("@daily", "custom", None),
        ('{"kind": "cron", "spec": "0 9 * * *"}', "daily", '{"kind":"cron","spec":"30 7 * * *"}'),
        ("0 9 * * *", "daily", "30 7 * * *"),
        ("CRON_TZ=UTC 0 9 31 * *", "monthly", "CRON_TZ=UTC 30 7 31 * *"),
    ],
)
def test_the_element_keeps_a_rule_until_it_is_edited(browser, address, rule, preset, edited):
    browser.open(f"{address}/form?rule={quote(rule)}")
    choice = browser.find("select[aria-label='How often']")
    assert (choice.get_attribute("value"), value_of(browser)) == (preset, rule)
    if edited is not None:
        browser.driver.execute_script(
            "const time = document.querySelector('[type=time]'); time.value = '07:30';"
            "time.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert value_of(browser) == edited


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
