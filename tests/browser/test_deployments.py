"""The pages below a URL prefix, behind a reverse proxy, with each kind of login."""

import pytest

from tests.support.flower_server import VERSIONS

PAGES = ("schedules", "runs", "timeline", "nodes")
ALICE = "alice:secret"
PREFIX = "monitor"


@pytest.fixture
def holds(page_site):
    """Return the calls of the installation that hold and release; nothing stays held."""
    schedules = page_site.dynbeat.schedules
    yield schedules
    schedules.release()


def hold_everything(browser, *, reason):
    browser.find("button", "Hold everything").click()
    browser.find("[name=reason]").send_keys(reason)
    browser.find(".db-confirm button").click()
    browser.find(".db-message", "Everything is held")


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
