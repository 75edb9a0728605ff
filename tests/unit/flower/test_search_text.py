"""The search box: terms with keys, quotes, and errors that say what to write."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.flower.base.search_text import MAX_LENGTH, SearchError, parse_terms, term
from celery_dynbeat.flower.pages.schedule_search import KEYS, ScheduleSearch

parse = ScheduleSearch.parse
VALUES = st.text(min_size=1, max_size=40)


def error_of(text):
    with pytest.raises(SearchError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("", {}),
        ("   ", {}),
        ("dig", {"name": "dig"}),
        ("owner:user:42", {"owner": "user:42"}),
        ("owner_prefix:org:7/", {"owner_prefix": "org:7/"}),
        ("customer:13", {"text": "customer:13"}),
        ('customer:"a b" tag:vip', {"text": "customer:a b", "tag": "vip"}),
        (
            "task:report.digest tag:vip  name:dig",
            {"task": "report.digest", "tag": "vip", "name": "dig"},
        ),
        ("tag:vip dig", {"tag": "vip", "name": "dig"}),
        ('name:"daily report"', {"name": "daily report"}),
        ('"daily report" tag:vip', {"name": "daily report", "tag": "vip"}),
        ('name:"say \\"hi\\" \\\\"', {"name": 'say "hi" \\'}),
        ('owner:""', {"owner": ""}),
        ('name:"a*"', {"name": "a*"}),
        ("owner:a\\b", {"owner": "a\\b"}),
        ("name:\u202eevil", {"name": "\u202eevil"}),
    ],
)
def test_a_text_is_a_search(text, search):
    assert parse(text) == ScheduleSearch(**search)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("user:42 org:7", "text: occurs twice"),
        ('name:"daily report', "The quotes in"),
        ('name:"a"b', "The quotes in"),
        ('a"b', "The quotes in"),
        ("task:report.*", "* is not a wildcard"),
        ("tag:vip tag:trial", "tag: occurs twice"),
        ("daily report", 'name:"daily report"'),
        ("owner:", 'Write owner:"" for the application itself'),
        ("task:", "task: has no value."),
        ('tag:""', "tag: has no value."),
        ("x" * (MAX_LENGTH + 1), "more than 2,000 characters"),
    ],
)
def test_an_error_says_what_to_write(text, part):
    assert part in error_of(text)


def test_an_error_is_short():
    assert len(error_of("x" * 900 + " " + "y" * 900)) < 400


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, VALUES)))
def test_the_text_of_a_search_is_read_as_the_same_search(values):
    search = ScheduleSearch(**values)

    assert parse(str(search)) == search


@given(st.text(max_size=200))
def test_any_text_is_a_search_or_an_error(text):
    with suppress(SearchError):
        search = parse(text)
        assert parse(str(search)) == search


def test_a_value_is_quoted_only_where_it_is_needed():
    assert term("owner", "user:42") == "owner:user:42"
    assert term("owner", "") == 'owner:""'
    assert term("name", "a b") == 'name:"a b"'
    assert term("name", 'a"b\\') == 'name:"a\\"b\\\\"'


def test_a_page_has_its_own_keys():
    assert parse_terms("worker:w1", keys=("worker", "name"), default="name") == {"worker": "w1"}
