"""The keys of filters: a search box, the arguments of a URL, and the keywords of calls."""

from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.api.filters import (
    KEYS,
    MAX_SEARCH,
    ChangeKeywords,
    RunKeywords,
    ScheduleKeywords,
    from_texts,
    parse_search,
    search_keys,
    search_text,
    term,
    to_texts,
)
from celery_dynbeat.common.filters import ChangeFilter, RunFilter, ScheduleFilter

VALUES = st.text(min_size=1, max_size=40)
KEYWORDS = {
    ScheduleFilter: ScheduleKeywords,
    RunFilter: RunKeywords,
    ChangeFilter: ChangeKeywords,
}
#: The list fills them in.
FILLED_IN = {"now", "overdue_before", "schedule_id"}


def parse(text):
    found = parse_search(ScheduleFilter, text)
    return {key: value for key, value in found.items() if value is not None}


def text_of(search):
    return search_text(ScheduleFilter, {key: [value] for key, value in search.items()})


def error_of(text):
    with pytest.raises(InvalidArgumentError) as caught:
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
    assert parse(text) == search


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
        ("x" * (MAX_SEARCH + 1), "more than 2,000 characters"),
    ],
)
def test_an_error_says_what_to_write(text, part):
    assert part in error_of(text)


def test_an_error_is_short():
    assert len(error_of("x" * 900 + " " + "y" * 900)) < 400


@given(
    st.fixed_dictionaries({}, optional={key.name: VALUES for key in search_keys(ScheduleFilter)})
)
def test_the_text_of_a_search_is_read_as_the_same_search(search):
    assert parse(text_of(search)) == search


@given(st.text(max_size=200))
def test_any_text_is_a_search_or_an_error(text):
    with suppress(InvalidArgumentError):
        search = parse(text)
        assert parse(text_of(search)) == search


def test_a_value_is_quoted_only_where_it_is_needed():
    assert term("owner", "user:42") == "owner:user:42"
    assert term("owner", "") == 'owner:""'
    assert term("name", "a b") == 'name:"a b"'
    assert term("name", 'a"b\\') == 'name:"a\\"b\\\\"'


def test_a_page_has_its_own_keys():
    assert parse_search(RunFilter, "worker:w1")["worker"] == "w1"
    assert "worker" not in parse("worker:w1")


@pytest.mark.parametrize("kind", KEYS)
def test_each_field_of_a_filter_has_a_key(kind):
    names = [field.name for field in fields(kind) if field.name not in FILLED_IN]

    assert sorted(key.of_filter for key in KEYS[kind]) == sorted(names)


@pytest.mark.parametrize(("kind", "keywords"), KEYWORDS.items())
def test_the_keywords_of_calls_are_the_fields_of_the_filter(kind, keywords):
    types = get_type_hints(kind)
    # The calls take the name of a schedule as their first argument.
    names = {key.of_filter for key in KEYS[kind] if key.in_calls} - {"name"}

    assert get_type_hints(keywords) == {name: types[name] for name in names}


def _instant(_name, text):
    return datetime.fromisoformat(text)


def test_the_arguments_of_a_url_are_read_as_the_same_filter():
    matching = RunFilter(
        owner="",
        name="digest",
        status=("failed", "lost"),
        batch_id="01a203ec-f449-7a5a-aa02-b03ca0cb18fc",
        since=datetime(2026, 11, 22, 9, tzinfo=UTC),
    )
    texts = to_texts(matching)

    assert texts["status"] == ["failed", "lost"]
    assert from_texts(RunFilter, texts, instant=_instant) == matching


def test_an_empty_argument_is_no_condition_except_for_the_owner():
    given = {"owner": [""], "task": [""], "state": ["paused"], "enabled": ["no"]}

    assert from_texts(ScheduleFilter, given) == ScheduleFilter(owner="", state="paused")
