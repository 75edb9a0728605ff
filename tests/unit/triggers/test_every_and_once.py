"""The fire times of Every and Once, and the arguments that they reject."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, Once

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, MICROSECOND = timedelta(minutes=1), timedelta(microseconds=1)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - made aware
intervals = st.timedeltas(MICROSECOND, timedelta(days=36525))


@given(anchor=instants, instant=instants, interval=intervals)
def test_an_anchored_interval_fires_only_at_whole_multiples(anchor, instant, interval):
    fire_time = Every(interval, anchor=anchor).next_after(instant)

    assert fire_time > instant
    assert fire_time >= anchor
    assert (fire_time - anchor) % interval == timedelta()
    assert fire_time == anchor or fire_time - interval <= instant


def test_there_is_no_fire_time_after_the_year_9999():
    late = datetime(9999, 12, 31, 23, tzinfo=UTC)

    assert Every(timedelta(days=2)).next_after(late) is None
    assert Every(timedelta(days=2), anchor=NOON).next_after(late) is None
    assert Every(timedelta(days=2)).latest_until(after=late, until=late) is None


@pytest.mark.parametrize(
    ("interval", "reason"),
    [
        (0, "positive"),
        (-5, "positive"),
        (timedelta(seconds=-5), "positive"),
        (1e-9, "at least a microsecond"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (1e300, "100 years"),
        pytest.param(10**5000, "100 years", id="huge"),
        (timedelta.max, "100 years"),
        (True, "number of seconds"),
        ("5", "number of seconds"),
        (None, "number of seconds"),
    ],
)
def test_an_invalid_interval_is_rejected_with_the_reason(interval, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        Every(interval)

    assert refusal.value.field == "interval"


def test_once_after_counts_from_the_instant_at_which_it_is_stored():
    trigger = Once.after(timedelta(hours=1))

    assert trigger.resolved_at(NOON) == Once(NOON + timedelta(hours=1))
    assert trigger.anchored_at(NOON) == Once(NOON + timedelta(hours=1))
    assert Once.after(0).resolved_at(NOON) == Once(NOON)
    assert Once(NOON).resolved_at(NOON + MINUTE) == Once(NOON)


def test_once_after_has_no_instant_before_it_is_stored():
    with pytest.raises(InvalidTriggerError, match=r"that create\(\) returns") as refusal:
        _ = Once.after(MINUTE).at

    assert refusal.value.field == "at"
    assert (Once.after(MINUTE).delay, Once(NOON).delay) == (MINUTE, None)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (Once, "at"),
        (lambda naive: Every(5, anchor=naive), "anchor"),
        (lambda naive: Every(5).next_after(naive), "instant"),
        (lambda naive: Once(NOON).latest_until(after=naive, until=NOON), "after"),
        (lambda naive: Once(NOON).count_until(after=NOON, until=naive, limit=1), "until"),
    ],
)
@pytest.mark.parametrize("bad", [NOON.replace(tzinfo=None), NOON.date(), "now", 5])
def test_an_instant_that_is_not_aware_is_rejected(make, field, bad):
    with pytest.raises(InvalidTriggerError) as refusal:
        make(bad)

    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Every(300), "every 5 minutes"),
        (Every(3600), "every hour"),
        (Every(5400), "every 1 hour 30 minutes"),
        (Every(0.5), "every 0.5 seconds"),
        (Every(timedelta(days=1)), "every 24 hours"),
        (Every(timedelta(hours=36, minutes=30)), "every 36 hours 30 minutes"),
        (Every(60, anchor=NOON), "every minute from 2026-11-21 12:00 UTC"),
        (Once(NOON), "once at 2026-11-21 12:00 UTC"),
        (Once.after(3600), "once, 1 hour after the schedule is stored"),
        (Once.after(5400), "once, 1 hour 30 minutes after the schedule is stored"),
        (Once.after(0), "once, as soon as the schedule is stored"),
    ],
)
def test_a_trigger_is_described_in_words(trigger, words):
    assert trigger.phrase() == words
    assert trigger.describe() == words[0].upper() + words[1:]


@pytest.mark.parametrize("zone", ["Asia/Seoul", None])
def test_an_instant_is_described_in_the_zone_of_its_reader(zone):
    at = datetime(2026, 12, 24, 9, 0, 30, 123456, tzinfo=UTC)
    shown = {"Asia/Seoul": "2026-12-24 18:00:30 (Asia/Seoul)", None: "2026-12-24 09:00:30 UTC"}
    once, every = Once(at), Every(60, anchor=at)

    assert once.describe(zone) == f"Once at {shown[zone]}"
    assert every.describe(zone) == f"Every minute from {shown[zone]}"
    assert AnyOf(once, Cron("0 9 * * *")).describe(zone).endswith(f"; or once at {shown[zone]}")
    assert once.excluding(date(2027, 1, 1)).describe(zone).startswith(f"Once at {shown[zone]}")


@pytest.mark.parametrize(
    ("unit", "hint"), [("seconds", "Every\\(300\\) in seconds"), ("month", "days, weeks, months")]
)
def test_an_unknown_unit_is_rejected_with_a_hint(unit, hint):
    with pytest.raises(InvalidTriggerError, match=hint):
        Every(**{unit: 1})
