"""The chips of the filters that are in the URL."""

from html.parser import HTMLParser
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

HOSTILE = '"><script>alert(1)</script>\u202e'
EACH_FILTER = {
    "schedules": "state=paused&owner=u7&task=t&tag=vip&name=dig",
    "runs": "status=failed&status=lost&owner=u7&name=digest&task=t&since=24h&until=1h",
    "timeline": "owner=u7&task=t&tag=vip",
}


class _Chips(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self._is_inside = {}, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "ul":
            self._is_inside = attributes.get("class") == "db-active"
        if self._is_inside and tag == "a":
            self._text, self._href = "", attributes["href"]

    def handle_data(self, data):
        if self._is_inside and hasattr(self, "_text"):
            self._text += data

    def handle_endtag(self, tag):
        if self._is_inside and tag == "a":
            label = (
                self._text.removeprefix("Remove the filter")
                .removesuffix("\N{MULTIPLICATION SIGN}")
                .strip()
            )
            self.links[label] = parse_qsl(urlsplit(self._href).query, keep_blank_values=True)
        self._is_inside = self._is_inside and tag != "ul"


@pytest.fixture
def chips(pages):
    """Return a function that gives the text of each chip and the arguments of its link."""
    return lambda path: _Chips(pages.get(f"/dynbeat/{path}").text).links


@pytest.mark.parametrize(("page", "query"), EACH_FILTER.items())
def test_each_filter_of_a_url_has_a_chip_that_removes_only_it(chips, page, query):
    given = parse_qsl(query)

    found = chips(f"{page}?{query}&zone=UTC")

    assert found.pop("Clear all") == [("zone", "UTC")]
    assert list(found) == [f"{name}: {value}" for name, value in given]
    for (name, value), arguments in zip(given, found.values(), strict=True):
        # A name has no meaning without the owner.
        gone = {"owner", "name"} if (page, name) == ("runs", "owner") else set()
        left = [pair for pair in given if pair != (name, value) and pair[0] not in gone]
        assert sorted(arguments) == sorted([*left, ("zone", "UTC")])


def test_a_hostile_value_is_text(chips):
    found = chips(f"schedules?task={quote(HOSTILE)}")

    assert list(found) == [f"task: {HOSTILE}".replace("\u202e", "\\u202e")]


def test_many_values_have_a_bounded_number_of_chips(chips):
    query = "&".join(f"status=s{number}" for number in range(200))

    assert len(chips(f"runs?{query}")) == 21
