"""The picker writes rules that the library reads, and finds itself in the rules that it wrote."""

from datetime import date
from zoneinfo import ZoneInfo

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
from celery_dynbeat.triggers import Trigger

ZONES = st.sampled_from(["", "Asia/Seoul", "Europe/Berlin"])
SEOUL = ZoneInfo("Asia/Seoul")
TIMES = st.times().map(lambda time: f"{time:%H:%M}")
PICKER_FIELDS = [
    *("pick", "pick_count", "pick_unit", "pick_time", "pick_day", "pick_at", "pick_zone"),
]
PICKED = st.one_of(
    st.builds(
        Picked,
        choice=st.just("every"),
        count=st.integers(1, 999).map(str),
        unit=st.sampled_from(UNITS),
        zone=ZONES,
    ),
    st.builds(Picked, choice=st.just("daily"), time=TIMES, zone=ZONES),
    st.builds(
        Picked,
        choice=st.just("weekly"),
        time=TIMES,
        days=st.lists(st.sampled_from(WEEKDAYS), min_size=1, unique=True).map(
            lambda days: tuple(day for day in WEEKDAYS if day in days)
        ),
    ),
    st.builds(Picked, choice=st.just("monthly"), time=TIMES, month_day=st.sampled_from(MONTH_DAYS)),
    st.builds(
        Picked,
        choice=st.just("once"),
        at=st.builds("{}T{}".format, st.dates(date(2026, 1, 1), date(2030, 1, 1)), TIMES),
        zone=ZONES,
    ),
)


def trigger_of(text):
    return Trigger.from_text(text, timezone="Asia/Seoul")


def picked_of_text(text):
    return picked_of(trigger_of(text), owner_zone=SEOUL)


@given(PICKED)
def test_a_picked_rule_is_valid_and_opens_with_choices_that_write_it(picked):
    trigger = trigger_of(rule_of(picked))

    again = picked_of(trigger, owner_zone=SEOUL)

    assert again.choice == picked.choice
    assert trigger_of(rule_of(again)) == trigger


def test_the_last_day_of_a_stored_rule_is_a_choice():
    assert picked_of_text("0 9 L * *").month_day == "L"


def test_the_zone_of_a_stored_rule_is_a_choice():
    picked = picked_of_text("CRON_TZ=Europe/Berlin 0 9 * * *")

    assert (picked.choice, picked.zone) == ("daily", "Europe/Berlin")


def test_an_instant_is_shown_on_the_clock_of_the_owner():
    assert picked_of_text("2026-12-24T09:00Z").at == "2026-12-24T18:00"


def test_the_second_of_two_equal_times_is_written_by_hand():
    first, second = "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"
    berlin = ZoneInfo("Europe/Berlin")

    assert picked_of(trigger_of(first), owner_zone=berlin).choice == "once"
    assert picked_of(trigger_of(second), owner_zone=berlin).choice == ""


@pytest.mark.parametrize(
    ("picked", "rule"),
    [
        (Picked(choice="every", count="90", unit="minutes"), "PT90M"),
        (Picked(choice="daily", time="9:05"), "5 9 * * *"),
        (Picked(choice="weekly"), "0 9 * * mon-fri"),
        (Picked(choice="weekly", days=["sun", "mon"]), "0 9 * * mon,sun"),
        (Picked(choice="monthly", month_day="L"), "0 9 L * *"),
        (Picked(choice="once", at="2026-12-24T18:00"), "2026-12-24T18:00"),
        (
            Picked(choice="once", at="2026-12-24T18:00", zone="UTC"),
            "TZ=UTC 2026-12-24T18:00",
        ),
        (Picked(choice="daily", zone=" Asia/Seoul "), "CRON_TZ=Asia/Seoul 0 9 * * *"),
        (Picked(choice="every", unit="days", zone="Asia/Seoul"), "TZ=Asia/Seoul P5D"),
        # An interval of minutes follows no clock.
        (Picked(choice="every", unit="minutes", zone="Asia/Seoul"), "PT5M"),
    ],
)
def test_a_choice_writes_its_rule(picked, rule):
    assert rule_of(picked) == rule


def test_an_unknown_zone_is_refused():
    with pytest.raises(ValueError, match="did you mean 'Asia/Seoul'"):
        rule_of(Picked(choice="daily", zone="Asia/Seol"))


@pytest.mark.parametrize(
    "rule",
    [
        "*/5 * * * *",
        "0 9 * * mon#2",
        "0 9 1 * mon",
        "0 9 * * 1-5",
        "0 9 L-3 * *",
        "0 9 * * * except 2026-12-25",
        "R/2026-01-31T09:00:00Z/P1D",
        "2026-12-24T18:00:30",
        "in 2h",
    ],
)
def test_another_rule_is_written_by_hand(rule):
    assert picked_of_text(rule).choice == ""


def test_a_damaged_rule_has_no_choice():
    assert picked_of(None, owner_zone=SEOUL) == Picked()


@given(
    st.dictionaries(
        st.sampled_from(
            ["pick", "pick_count", "pick_unit", "pick_time", "pick_day", "pick_at", "pick_zone"]
        ),
        st.lists(st.text() | st.sampled_from(["every", "daily", "weekly", "once", "9" * 9999])),
    )
)
def test_any_texts_write_a_rule_or_raise_a_value_error(values):
    try:
        rule = rule_of(picked_from(values))
    except ValueError:
        return
    assert trigger_of(rule).to_text()
