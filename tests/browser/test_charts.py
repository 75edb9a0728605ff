"""The charts in a real browser: their look, the keyboard, and what a title shows.

The fixture fails a test whose page logs an error or a violation of its Content-Security-Policy.
"""

from itertools import pairwise

import pytest
from selenium.webdriver import ActionChains, Keys

from tests.support.browsers import NARROW, WIDE, chromium
from tests.support.chart_page import chart_page
from tests.support.fixtures import service_is_missing
from tests.support.servers import ServerMissingError

#: The size of the text of a chart, in pixels.
TEXT_SIZE = 12


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory):
    """Return a browser for all tests of the module: the pages store nothing in its profile."""
    try:
        with chromium(tmp_path_factory.mktemp("browser")) as made:
            yield made
    except ServerMissingError as error:
        service_is_missing(str(error))


@pytest.fixture
def browser(shared_browser):
    """Return the browser in a wide window, on an empty page. A logged error fails the test."""
    shared_browser.open("about:blank")
    shared_browser.resize(WIDE)
    yield shared_browser
    assert shared_browser.console_errors() == []


@pytest.fixture
def page(browser):
    with chart_page(theme="light") as url:
        browser.open(url)
        yield browser


def press(browser, *keys):
    ActionChains(browser.driver).send_keys(*keys).perform()


def focus(browser, selector):
    browser.driver.execute_script("document.querySelector(arguments[0]).focus()", selector)


def focused(browser):
    return browser.driver.execute_script("return document.activeElement.getAttribute('href')")


def boxes(browser, selector):
    """Return the left, right and width of each element that a CSS selector finds."""
    script = (
        "return Array.from(document.querySelectorAll(arguments[0]),"
        " each => each.getBoundingClientRect()).map(box => [box.left, box.right, box.width])"
    )
    return browser.driver.execute_script(script, selector)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_are_accessible_and_run_no_script_of_their_text(browser, theme):
    with chart_page(theme=theme) as url:
        browser.open(url)

        assert browser.accessibility_errors() == []
        assert browser.driver.title == "Charts"
        browser.screenshot(f"charts-{theme}")


def test_charts_fit_a_telephone_and_keep_the_size_of_their_text(page):
    page.resize(NARROW)
    page.screenshot("charts-narrow")

    assert page.overflow() == 0
    sizes = page.driver.execute_script(
        "return Array.from(document.querySelectorAll('svg text'),"
        " text => text.getBoundingClientRect().height)"
    )
    assert all(size >= TEXT_SIZE for size in sizes if size)


@pytest.mark.parametrize("width", [NARROW, 1280])
def test_labels_of_an_axis_do_not_overlap(page, width):
    page.resize(width)

    for chart in ("lines", "timeline", "histogram"):
        for kind in (".dynbeat-tick-day", "text:not(.dynbeat-tick-day):not([x='-8'])"):
            labels = boxes(
                page, f"#{chart} .dynbeat-axis:has(.dynbeat-grid, .dynbeat-tick-odd) {kind}"
            )
            shown = [label for label in labels if label[2]]
            for (_, right, _), (left, _, _) in pairwise(shown):
                assert left > right


def test_a_run_without_a_duration_is_two_pixels_wide(page):
    # What the pointer finds is what the browser draws.
    script = """
        const bar = Array.from(document.querySelectorAll("#timeline .dynbeat-tone-success rect"))
            .find(each => each.getBBox().width < 0.1);
        bar.scrollIntoView({block: "center"});
        const box = bar.getBBox();
        const left = bar.closest("svg").getBoundingClientRect().left + box.x;
        const top = bar.getBoundingClientRect().top + 5;
        return [-1.5, -0.9, 0.9, 1.5].map(
            move => document.elementFromPoint(left + move, top) === bar);
    """
    assert page.driver.execute_script(script) == [False, True, True, False]


def test_every_mark_is_within_its_chart(page):
    for chart in ("strip", "lines", "calendar", "timeline", "histogram"):
        [(left, right, _)] = boxes(page, f"#{chart}")
        marks = boxes(page, f"#{chart} .dynbeat-mark")
        assert marks
        assert all(left <= start and end <= right for start, end, _ in marks)


def test_the_labels_of_a_timeline_stay_on_the_screen_below_the_bar_of_flower(page):
    # As below a long list of rows.
    script = """
        document.body.style.paddingBottom = "2000px";
        const chart = document.querySelector(".dynbeat-timeline");
        const top = chart.getBoundingClientRect().top + 90;
        window.scrollTo({top: window.scrollY + top, behavior: "instant"});
        return [chart, chart.firstChild].map(each => Math.round(each.getBoundingClientRect().top));
    """
    assert page.driver.execute_script(script) == [-90, 64]


def test_the_arrow_keys_move_between_the_runs_of_a_strip(page):
    focus(page, "#strip a:not([tabindex])")
    assert focused(page) == "#run-24"

    press(page, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert focused(page) == "#run-22"
    press(page, Keys.ARROW_RIGHT)
    assert focused(page) == "#run-23"


def test_the_arrow_keys_stay_in_the_row_of_a_timeline(page):
    focus(page, "#timeline .dynbeat-row:nth-child(2) a")

    press(page, Keys.ARROW_RIGHT)
    assert focused(page) == "#row-1-0"
    press(page, Keys.ARROW_LEFT)
    assert focused(page) == "#row-1-0"


def test_the_tab_key_passes_a_chart_in_one_step(page):
    focus(page, "#strip a:not([tabindex])")

    press(page, Keys.TAB)
    assert focused(page) == "#failed"
    press(page, Keys.TAB)
    assert focused(page) == "#day-180"


def test_a_focused_mark_shows_its_title_until_escape(page):
    focus(page, "#histogram a:not([tabindex])")
    assert page.find(".dynbeat-tooltip").text == "minute 179"

    press(page, Keys.ESCAPE)
    assert not page.find_all(".dynbeat-tooltip:not([hidden])")


def test_a_mark_under_the_pointer_shows_its_title_as_text_and_keeps_its_name(page):
    run = page.find_all("#strip .dynbeat-mark")[0]
    ActionChains(page.driver).move_to_element(run).perform()

    assert "<script>document.title" in page.find(".dynbeat-tooltip").text
    assert run.accessible_name.startswith('run 0 "><script>')
    [(left, right, _)] = boxes(page, ".dynbeat-tooltip")
    assert left >= 0
    assert right <= 1280

    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    assert not page.find_all(".dynbeat-tooltip:not([hidden])")
