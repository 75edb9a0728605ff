"""The browser of the tests sees what a page does wrong."""

import pytest


@pytest.fixture
def page(browser, flower):
    """Return the browser on a page without a fault."""
    browser.open(f"{flower.url}/dynbeat/nodes")
    browser.find(".db-page")
    assert browser.console_errors() == []
    return browser


def append(browser, tag, **attributes):
    script = """
        const element = Object.assign(document.createElement(arguments[0]), arguments[1]);
        document.querySelector("main, body").append(element);
    """
    browser.driver.execute_script(script, tag, attributes)


def test_an_uncaught_exception_is_an_error(page):
    page.driver.execute_script("setTimeout(() => { throw new Error('broken') })")

    assert page.wait(lambda _: "broken" in "".join(page.console_errors()), "no error was logged")


def test_an_inline_script_violates_the_policy_and_does_not_run(page):
    append(page, "script", textContent="window.ran = true")

    (error,) = page.console_errors()
    assert "Content Security Policy" in error
    assert page.driver.execute_script("return window.ran") is None


def test_an_expected_error_is_accepted_and_others_are_not(page):
    page.expect_error("refused")

    page.driver.execute_script("console.error('refused'); console.error('broken')")

    (error,) = page.console_errors()
    assert "broken" in error


def test_an_image_without_a_text_is_an_accessibility_error(page):
    assert page.accessibility_errors() == []

    append(page, "img", src="/static/favicon.ico")

    (finding,) = page.accessibility_errors()
    assert finding.startswith("image-alt (critical)")


def test_a_page_that_is_too_wide_overflows(page):
    assert page.overflow() == 0

    page.driver.execute_script("document.querySelector('.db-page').style.minWidth = '2000px'")

    assert page.overflow() > 0


def test_each_test_has_an_empty_profile(page):
    names = {cookie["name"] for cookie in page.driver.get_cookies()}

    assert names <= {"_xsrf", "dynbeat_viewer_zone"}
    assert page.driver.execute_script("return localStorage.length") == 0
