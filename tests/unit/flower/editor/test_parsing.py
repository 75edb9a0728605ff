"""The texts of the form become arguments, or an error at a field. No text raises."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import Cron, Every, Once, Trigger
from celery_dynbeat.flower.editor.fields import FIELDS, LABELS, POLICIES, RULE_FIELDS
from celery_dynbeat.flower.editor.parsing import Parsing, check_names, parse
from celery_dynbeat.flower.editor.stored import EMPTY

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
NOON = "20261123T120000"
SEOUL = Parsing(owner_zone="Asia/Seoul", limit=65_536, now=lambda: NOW)
HOSTILE = st.sampled_from(
    [
        *("\x00", "\ud800", "\u202e", "9" * 10_000, "[" * 100_000, '{"a":' * 5_000, "1e400"),
        *("NaN", "-1", "0", "P" + "9" * 400 + "Y", "9999-12-31T23:59:59-12:00", "* * * * *" * 999),
        *("0001-01-01T00:00+14:00", "R/0001-01-01T00:00:00Z/PT1S", "../../etc/passwd", "\n", " "),
        *("cron", "every", "once", "rrule", "solar", "any_of", "excluding", "UTC", "localtime"),
        *('[{"kind":"any_of","spec":"[]"}]', '{"trigger":{"kind":"cron"}}', "FREQ=SECONDLY"),
    ]
)
TEXTS = HOSTILE | st.text(max_size=60)


def parsed(**texts):
    return parse({**EMPTY, **texts}, stored=EMPTY, by=SEOUL)


@given(st.dictionaries(st.sampled_from(FIELDS), TEXTS))
def test_any_texts_are_arguments_or_errors_of_fields(texts):
    result = parse({**EMPTY, **texts}, stored={}, by=SEOUL)

    assert result.errors.keys() <= {*FIELDS}
    assert all(result.errors.values())
    # A rule is one argument.
    arguments = {name if name != "trigger" else "rule" for name in result.changes}
    assert arguments | result.errors.keys() >= {*FIELDS} - {*RULE_FIELDS}


def test_a_text_that_nobody_edited_is_not_parsed():
    stored = {**EMPTY, "kind": "moon", "rule": "full", "window": "\x00"}

    assert parse(stored, stored=stored, by=SEOUL).changes == {}
    edited = parse({**stored, "task": "t"}, stored=stored, by=SEOUL)
    assert (edited.changes, edited.errors) == ({"task": "t"}, {})


def test_a_field_that_the_form_does_not_have_is_not_changed():
    assert parse({"description": "x"}, stored=EMPTY, by=SEOUL).changes == {"description": "x"}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("args", '[1, "a"]', [1, "a"]),
        ("kwargs", ' {"a": null} ', {"a": None}),
        ("tags", " a \n\nb,c", ["a", "b,c"]),
        ("priority", " 7 ", 7),
        ("window", "1.5m", timedelta(seconds=90)),
        ("window", "50 %", "50%"),
        ("start_at", "2026-11-30T09:00", datetime(2026, 11, 30, tzinfo=UTC)),
        ("end_at", "2h", NOW + timedelta(hours=2)),
        ("overlap", "skip", "skip"),
        ("max_runs", "3", 3),
        ("queue", " mail ", "mail"),
    ],
)
def test_a_text_becomes_the_argument(field, text, value):
    result = parsed(**{field: text})

    assert (result.changes, result.errors) == ({field: value}, {})


@pytest.mark.parametrize("field", [*(policy.name for policy in POLICIES), "queue", "priority"])
def test_an_empty_field_returns_to_the_default(field):
    result = parse({field: " "}, stored={field: "x"}, by=SEOUL)

    assert result.changes == {field: None}


def test_times_follow_the_zone_of_the_rule():
    changes = parsed(
        timezone="Europe/Berlin", rule="0 9 * * *", start_at="2026-11-30T09:00"
    ).changes

    assert changes["start_at"] == datetime(2026, 11, 30, 8, tzinfo=UTC)
    assert changes["trigger"] == Cron("0 9 * * *", timezone="Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "rule", "trigger"),
    [
        ("", "5 min", Every(300)),
        ("", "2026-11-23T09:00", Once(datetime(2026, 11, 23, tzinfo=UTC))),
        ("", "2026-11-23T09:00+01:00", Once(datetime(2026, 11, 23, 8, tzinfo=UTC))),
        ("once", "30m", Once(NOW + timedelta(minutes=30))),
        ("once", "PT40H", Once.after(timedelta(hours=40))),
        ("cron", " @daily ", Cron("@daily")),
    ],
)
def test_a_rule_is_read_in_the_zone_of_the_owner(kind, rule, trigger):
    assert parsed(kind=kind, rule=rule).changes == {"trigger": trigger}


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"kind": "moon", "rule": "full"}, "rule"),
        ({"rule": "5m", "timezone": "UTC"}, "timezone"),
        ({"rule": "0 9 * * *", "timezone": "Mars/Base"}, "timezone"),
        (
            {
                "rule": "DTSTART;TZID=Asia/Seoul:20261123T090000\nRRULE:FREQ=DAILY",
                "timezone": "UTC",
            },
            "timezone",
        ),
        ({"kind": "once", "rule": "9999-12-31T23:59:59-12:00"}, "rule"),
    ],
)
def test_an_error_of_the_rule_names_its_field(texts, field):
    assert list(parsed(**texts).errors) == [field]


@pytest.mark.parametrize(
    "text",
    [
        "CRON_TZ=Asia/Seoul 0 9 * * mon-fri",
        "in PT2H",
        "TZ=Asia/Seoul P1M or 0 9 * * *",
        "0 9 * * * on the next business day of work except 2026-12-25, calendar holidays-de",
        "DTSTART;TZID=Asia/Seoul:20260105T090000 RRULE:FREQ=DAILY",
    ],
)
def test_the_text_of_any_trigger_can_be_typed(text):
    assert parsed(rule=text).changes == {"trigger": Trigger.from_text(text)}


def test_a_typed_zone_is_for_the_rules_of_a_text_that_name_none():
    both = parsed(rule="0 9 * * * or TZ=UTC P1M", timezone="Europe/Berlin").changes["trigger"]

    assert both == Trigger.from_text("CRON_TZ=Europe/Berlin 0 9 * * * or TZ=UTC P1M")
    for rule in ("PT5M", "TZ=UTC P1M"):
        assert (
            "leave the zone empty" in parsed(rule=rule, timezone="Europe/Berlin").errors["timezone"]
        )


def test_names_of_a_new_schedule_are_checked():
    assert check_names("", "digest") == {}
    assert check_names("\n", "").keys() == {"owner", "name"}


def test_each_field_has_a_label():
    assert set(EMPTY) == set(LABELS)
