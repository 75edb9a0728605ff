"""The picker writes rules that the library reads, and finds itself in the rules that it wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.flower.editor.picker import (
    MONTH_DAYS,
    UNITS,
    WEEKDAYS,
    Picked,
    picked_from,
    picked_of,
    rule_of,
)
from celery_dynbeat.triggers import parse_trigger

TIMES = st.times().map(lambda time: f"{time:%H:%M}")
PICKED = st.one_of(
    st.builds(
        Picked,
        choice=st.just("every"),
        count=st.integers(1, 999).map(str),
        unit=st.sampled_from(UNITS),
    ),
    st.builds(Picked, choice=st.just("daily"), time=TIMES),
    st.builds(
        Picked,
        choice=st.just("weekly"),
        time=TIMES,
        days=st.lists(st.sampled_from(WEEKDAYS), min_size=1, unique=True).map(
            lambda days: tuple(day for day in WEEKDAYS if day in days)
        ),
    ),
    st.builds(Picked, choice=st.just("monthly"), time=TIMES, month_day=st.sampled_from(MONTH_DAYS)),
)


@given(PICKED)
def test_a_picked_rule_is_valid_and_opens_with_choices_that_write_it(picked):
    kind, rule = rule_of(picked)

    trigger = parse_trigger(kind, rule, timezone="UTC")
    again = picked_of(trigger.kind, trigger.spec)

    assert (trigger.kind, again.choice) == (kind, picked.choice)
    assert parse_trigger(*rule_of(again), timezone="UTC") == trigger


def test_the_last_day_of_a_stored_rule_is_a_choice():
    trigger = parse_trigger("cron", "0 9 L * *", timezone="UTC")
    assert picked_of(trigger.kind, trigger.spec).month_day == "L"


@pytest.mark.parametrize(
    ("picked", "kind", "rule"),
    [
        (Picked(choice="every", count="90", unit="minutes"), "every", "PT90M"),
        (Picked(choice="daily", time="9:05"), "cron", "5 9 * * *"),
        (Picked(choice="weekly"), "cron", "0 9 * * mon-fri"),
        (Picked(choice="weekly", days=["sun", "mon"]), "cron", "0 9 * * mon,sun"),
        (Picked(choice="monthly", month_day="L"), "cron", "0 9 L * *"),
        (Picked(choice="once", at="2026-12-24T18:00"), "once", "2026-12-24T18:00"),
    ],
)
def test_a_choice_writes_its_rule(picked, kind, rule):
    assert rule_of(picked) == (kind, rule)


@pytest.mark.parametrize(
    "rule",
    [
        "*/5 * * * *",
        "0 9 * * mon#2",
        "0 9 1 * mon",
        "99 99 * * *",
        "0 9 * * 1-5",
        "",
        "0 9 L-3 * *",
    ],
)
def test_another_rule_is_written_by_hand(rule):
    assert picked_of("cron", rule).choice == ""


@given(
    st.dictionaries(
        st.sampled_from(["pick", "pick_count", "pick_unit", "pick_time", "pick_day", "pick_at"]),
        st.lists(st.text() | st.sampled_from(["every", "daily", "weekly", "once", "9" * 9999])),
    )
)
def test_any_texts_write_a_rule_or_raise_a_value_error(values):
    try:
        kind, rule = rule_of(picked_from(values))
    except ValueError:
        return
    assert kind in {"every", "cron", "once"}
    assert rule
