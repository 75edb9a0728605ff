"""Conversion of Celery's schedules to triggers, and of triggers to Celery's schedules.

The expected fire times of a crontab come from Celery itself, run by run, in UTC.
"""

from calendar import monthrange
from copy import copy
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, InvalidArgumentError, InvalidTriggerError, Once
from celery_dynbeat.celery_schedules import schedule_of, trigger_of
from celery_dynbeat.triggers import Solar

START = datetime(2026, 11, 21, 9, 17, tzinfo=UTC)
COUNT = 12
APP = Celery(set_as_current=False)
MONTHS = ["jan", "feb", "march", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "december"]
WEEKDAYS = ["sun", "monday", "tue", "wed", "thu", "fri", "sat"]


class Lunar(schedule):
    """A custom schedule class for Celery's own beat."""


def field(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[object]:
    """Return the values of a crontab field: texts, numbers, sets, lists."""
    numbers = st.integers(low, high)
    texts = st.one_of(numbers.map(str), st.sampled_from(names)) if names else numbers.map(str)
    spans = st.tuples(texts, texts).map("-".join)
    items = st.one_of(
        texts,
        spans,
        st.tuples(spans, st.integers(1, 9).map(str)).map("/".join),
        st.integers(1, 9).map("*/{}".format),
    )
    return st.one_of(
        st.just("*"),
        items,
        st.lists(items, min_size=2, max_size=3).map(",".join),
        numbers,
        st.sets(numbers, min_size=1, max_size=9),
        st.lists(numbers, min_size=1, max_size=3),
    )


def possible(**fields: object) -> crontab | None:
    try:
        spoken = crontab(**fields, app=APP)
    except ValueError:
        return None
    days = product(spoken.month_of_year, spoken.day_of_month)
    # Not 30 February.
    return spoken if any(day <= monthrange(2024, month)[1] for month, day in days) else None


crontabs = st.builds(
    possible,
    minute=field(0, 59),
    hour=field(0, 23),
    day_of_month=st.one_of(st.just("*"), field(1, 31)),
    month_of_year=st.one_of(st.just("*"), field(1, 12, MONTHS)),
    day_of_week=st.one_of(st.just("*"), field(0, 6, WEEKDAYS)),
).filter(bool)


def celery_fires(spoken: crontab, start: datetime = START) -> list[datetime]:
    """Return the next runs, computed by Celery from one to the next."""
    found = [start]
    # Before Celery 5.7 a last run that is not of today has another next run.
    spoken = copy(spoken)
    spoken.nowfun = lambda: found[-1]
    while len(found) <= COUNT:
        last, delta, _ = spoken.remaining_delta(found[-1], tz=UTC)
        found.append((last + delta).astimezone(UTC))
    return found[1:]


def fires(trigger: Cron, start: datetime = START) -> list[datetime]:
    found = [start]
    while len(found) <= COUNT:
        found.append(trigger.next_after(found[-1]))
    return found[1:]


@settings(max_examples=250)
@given(crontabs)
def test_a_crontab_has_celerys_fire_times_and_converts_back(spoken):
    trigger = trigger_of(spoken, timezone="Asia/Seoul")

    assert trigger.timezone == "UTC"
    assert fires(trigger) == celery_fires(spoken)
    assert schedule_of(trigger, app=APP) == spoken
    assert trigger_of(schedule_of(trigger, app=APP), timezone="UTC") == trigger


def test_text_is_rejected_with_the_trigger_to_write():
    with pytest.raises(InvalidArgumentError, match=r"Trigger.from_text\('PT5M'\)"):
        trigger_of("PT5M", timezone="UTC")


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90), schedule(90)])
def test_a_number_or_a_timedelta_becomes_an_interval(given):
    assert trigger_of(given, timezone="UTC") == Every(90)
    assert schedule_of(Every(90), app=APP) == schedule(90)


def test_solar_converts_in_both_directions():
    berlin = Solar("sunset", latitude=52.5, longitude=13.4)

    assert trigger_of(solar("sunset", 52.5, 13.4), timezone="UTC") == berlin
    assert schedule_of(berlin, app=APP) == solar("sunset", 52.5, 13.4)


def test_a_trigger_is_returned_unchanged():
    assert trigger_of(Every(months=1), timezone="UTC") == Every(months=1)


@pytest.mark.parametrize(
    "given",
    [
        Lunar(90),
        schedule(90, relative=True),
        crontab(nowfun=lambda: datetime.now(UTC)),
        None,
    ],
    ids=["lunar", "relative", "nowfun", "none"],
)
def test_a_schedule_without_an_equal_trigger_is_rejected(given):
    with pytest.raises(InvalidArgumentError, match="use one of them") as caught:
        trigger_of(given, timezone="UTC")

    assert caught.value.field == "schedule"


@pytest.mark.parametrize("given", [schedule(0), schedule(None), True, -5])
def test_an_invalid_interval_is_rejected(given):
    with pytest.raises(InvalidTriggerError):
        trigger_of(given, timezone="UTC")


@pytest.mark.parametrize(
    "cron",
    [
        Cron("*/5 * * * *"),
        Cron("5/15 22-2 * * *"),
        Cron("0 9 * jan-mar,dec fri-sun"),
        Cron("0 0 * * 7"),
        Cron("0 0 */2 * mon", timezone="UTC"),
        Cron("0 0 1-7 * mon", day_or=False),
        # One of two day fields must match, and one is every day: so every day.
        Cron("0 0 1-31 * mon"),
        Cron("0 0 1 * 0-6"),
        Cron("30 4 * * * 0"),
    ],
    ids=str,
)
def test_a_cron_has_celerys_fire_times_for_its_crontab(cron):
    assert fires(cron) == celery_fires(schedule_of(cron, app=APP))


def test_a_crontab_belongs_to_the_application_with_its_zone():
    app = Celery(set_as_current=False)
    app.conf.timezone = "Asia/Seoul"

    made = schedule_of(Cron("0 9 * * *", timezone="Asia/Seoul"), app=app)

    assert str(made.tz) == "Asia/Seoul"
    # The start, 09:17 UTC, is 18:17 in Seoul.
    start = START.astimezone(made.tz)
    made.nowfun = lambda: start
    last, delta, _ = made.remaining_delta(start)
    assert last + delta == datetime(2026, 11, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Etc/UTC", "Zulu", "Etc/GMT"])
def test_another_name_of_the_applications_zone_is_accepted(zone):
    assert schedule_of(Cron("0 9 * * *", timezone=zone), app=APP) == crontab("0", "9", app=APP)


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        (Cron("0 9 * * * 30"), "seconds"),
        (Cron("0 9 l * *"), "L, W, # and H"),
        (Cron("0 9 * * mon#2"), "L, W, # and H"),
        (Cron("0 9 13 * fri"), "day_or=False"),
        (Cron("0 9 * * *", timezone="Asia/Seoul"), "give the Cron UTC"),
        (Every(days=1), "use a Cron"),
        (Every(60, anchor=START), "leave the anchor out"),
        (Once(START), "store it with create()"),
        (AnyOf(Every(60), Every(90)), "store it with create()"),
        (Every(60).excluding(START.date()), "store it with create()"),
    ],
)
def test_a_trigger_that_celery_does_not_support_is_rejected_with_a_hint(trigger, reason):
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        schedule_of(trigger, app=APP)

    assert caught.value.field == "schedule"
