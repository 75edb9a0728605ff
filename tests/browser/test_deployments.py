"""The pages below a URL prefix, behind a reverse proxy, with each kind of login."""

import pytest

from tests.support.flower_server import VERSIONS
from tests.support.reverse_proxy import ReverseProxy

PAGES = ("schedules", "runs", "timeline", "nodes")
ALICE = "alice:secret"
PREFIX = "monitor"


# A test names its proxy before its browser: the page loads parts until the browser ends.
def in_front_of(flower, **options):
    target = flower.url.removesuffix(flower.prefix)
    return ReverseProxy(target, prefix=flower.prefix, **options)


@pytest.fixture(params=["browser's host", "server's host"])
def proxied(request, flower_with):
    """Return a proxy that forwards one prefix to a Flower, with either host header."""
    flower = flower_with("--xheaders", basic_auth=ALICE, url_prefix=PREFIX)
    with in_front_of(flower, keeps_host=request.param == "browser's host") as proxy:
        yield proxy


@pytest.fixture
def proxied_login(flower_with):
    """Return a proxy in front of a Flower with logins by e-mail address."""
    flower = flower_with("--xheaders", auth=".*@example.com", url_prefix=PREFIX)
    with in_front_of(flower) as proxy:
        yield proxy


@pytest.fixture
def holds(page_site):
    """Return the calls of the installation that hold and release; nothing stays held."""
    schedules = page_site.dynbeat.schedules
    yield schedules
    schedules.release()


def wait_for_fragments(browser):
    browser.wait(lambda _: not browser.find_all(".db-skeleton"), "a part is still loading")
    assert browser.find_all(".db-stale") == []


def hold_everything(browser, *, reason):
    browser.find("button", "Hold everything").click()
    browser.find("[name=reason]").send_keys(reason)
    browser.find(".db-confirm button").click()
    browser.find(".db-message", "Everything is held")


def test_links_and_actions_stay_below_the_prefix_behind_a_proxy(proxied, browser, holds):
    browser.log_in(f"{proxied.url}/workers", ALICE)
    for page in PAGES:
        label = "Beats" if page == "nodes" else page.capitalize()
        browser.find("nav a", label).click()
        wait_for_fragments(browser)
        assert browser.driver.current_url == f"{proxied.url}/dynbeat/{page}"

    hold_everything(browser, reason="moving")

    (hold,) = holds.holds()
    assert (hold.actor, hold.reason) == ("alice", "moving")
    browser.find("nav a", "Tasks").click()
    assert browser.driver.current_url == f"{proxied.url}/tasks"
    assert proxied.strays == []


def test_a_login_behind_a_proxy_leads_back_to_the_page(proxied_login, browser):
    page = f"{proxied_login.url}/dynbeat/runs?status=failed"

    browser.open(page)
    browser.find("[name=email]").send_keys("alice@example.com")
    browser.find("button").click()
    browser.find("nav a.active", "Runs")

    assert browser.driver.current_url == page
    assert proxied_login.strays == []


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_and_an_action_work_in_each_version_of_flower(browser, flower_with, holds, version):
    flower = flower_with(basic_auth=ALICE, url_prefix=PREFIX, version=version)
    browser.log_in(f"{flower.url}/dynbeat/runs", ALICE)
    for page in PAGES:
        browser.open(f"{flower.url}/dynbeat/{page}")
        browser.find(".db-page")

    hold_everything(browser, reason=version)

    assert [hold.reason for hold in holds.holds()] == [version]
    browser.find("button", "Release").click()
    browser.find(".db-message", "Everything is released")
    assert holds.holds() == []
