"""The imported triggers fire when the schedule objects of the old schedulers are due."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_dynbeat import Cron, Every, Once, Solar
from celery_dynbeat.api.fields import trigger_of
from celery_dynbeat.importing import conversion
from celery_dynbeat.importing.conversion import CrontabFields
from celery_dynbeat.importing.foreign import Inexpressible
from tests.support.peers import require
from tests.support.versions import needs_celery

COUNT = 8
#: Spans without a clock change in all zones.
STARTS = [datetime(2026, 1, 3, 7, 31, tzinfo=UTC), datetime(2026, 5, 30, 22, 5, tzinfo=UTC)]
ZONES = ["UTC", "Asia/Seoul", "Asia/Kolkata", "Europe/Berlin"]
WITHOUT_CHANGE = timedelta(days=55)


@pytest.fixture(scope="module")
def app():
    return Celery("peer", set_as_current=False)


def due_times(fields, zone, *, start, app, count=COUNT):
    """Yield when django-celery-beat's crontab is due, if beat sends each run in time."""
    require("django-celery-beat")
    from django_celery_beat.tzcrontab import TzAwareCrontab

    class Frozen(TzAwareCrontab):
        def nowfunc(self):
            return instant.astimezone(self.tz)

    instant = start
    schedule = Frozen(**fields._asdict(), tz=ZoneInfo(zone), app=app)
    for _ in range(count):
        instant += schedule.remaining_estimate(instant.astimezone(schedule.tz))
        yield instant.astimezone(UTC)


def fire_times(trigger, *, start, count=COUNT):
    instant = start
    for _ in range(count):
        instant = trigger.next_after(instant)
        yield instant


def field(low, high, names=()):
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda ends: f"{min(ends)}-{max(ends)}"
    )
    step = st.integers(1, high).map("*/{}".format)
    stepped = st.tuples(span, st.integers(1, 7)).map("{0[0]}/{0[1]}".format)
    one = st.one_of(number, span, step, stepped, *(map(st.just, names)))
    return st.one_of(st.just("*"), st.lists(one, min_size=1, max_size=3).map(",".join))


CRONTABS = st.builds(
    CrontabFields,
    minute=field(0, 59),
    hour=field(0, 23),
    day_of_month=field(1, 31),
    month_of_year=st.one_of(st.just("*"), field(1, 12)),
    day_of_week=field(0, 6, ["mon", "sun", "fri-sun", "mon-fri"]),
)


@given(CRONTABS, st.sampled_from(ZONES), st.sampled_from(STARTS))
@settings(max_examples=150)
def test_a_crontab_fires_at_the_same_times(app, fields, zone, start):
    try:
        trigger = conversion.cron(fields, zone).trigger
    except Inexpressible:
        assume(False)
    expected = list(due_times(fields, zone, start=start, app=app, count=1))
    until = start + WITHOUT_CHANGE
    assume(expected[0] < until)

    expected = [each for each in due_times(fields, zone, start=start, app=app) if each < until]

    assert list(fire_times(trigger, start=start, count=len(expected))) == expected


SPRING, AUTUMN = datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)
SKIPPED = "a time that the clock skips runs at the first instant after the gap (Europe/Berlin)"
REPEATED = "it also runs in the second pass of an hour that the clock repeats (Europe/Berlin)"


@needs_celery(5, 7, "these fire times at a clock change")
@pytest.mark.parametrize(
    ("expression", "start", "before", "after", "note"),
    [
        ("30 2 * * *", SPRING, ["29 01:30", "30 00:30"], ["29 01:00", "30 00:30"], SKIPPED),
        ("30 2 * * *", AUTUMN, ["25 00:30", "26 01:30"], ["25 00:30", "26 01:30"], SKIPPED),
        (
            "0 * * * *",
            AUTUMN,
            ["24 23:00", "25 00:00", "25 02:00"],
            ["24 23:00", "25 00:00", "25 01:00"],
            REPEATED,
        ),
    ],
    ids=["gap", "repeated", "wildcard"],
)
def test_the_differences_at_a_clock_change_are_those_of_the_notes(
    app, expression, start, before, after, note
):
    fields = CrontabFields(*expression.split())
    trigger, (only,) = conversion.cron(fields, "Europe/Berlin")
    count = len(before)

    expected = due_times(fields, "Europe/Berlin", start=start, app=app, count=count)

    assert [f"{each:%d %H:%M}" for each in expected] == before
    assert [f"{each:%d %H:%M}" for each in fire_times(trigger, start=start, count=count)] == after
    assert only.text.startswith(note)


@given(st.integers(1, 10_000), st.sampled_from(["days", "hours", "minutes", "seconds"]))
def test_an_interval_is_as_long_as_before(every, period):
    assume(timedelta(**{period: every}) < timedelta(days=36_000))

    trigger = conversion.interval(every, period).trigger

    assert trigger.anchored_at(STARTS[0]).next_after(STARTS[0]) == STARTS[0] + timedelta(
        **{period: every}
    )


def test_the_schedules_of_django_celery_beats_models_are_triggers(app):
    require("django-celery-beat")
    from django_celery_beat import clockedschedule, tzcrontab

    def now():
        return datetime.now(UTC)

    # The clock of its models, which no test can import without a Django project.
    now.__module__ = "django_celery_beat.models"
    at = STARTS[0]
    berlin = tzcrontab.TzAwareCrontab("30", "9", "1", tz=ZoneInfo("Europe/Berlin"), app=app)
    place = {"latitude": 52.5, "longitude": 13.4}

    for schedule, trigger in (
        (berlin, Cron("30 9 * * 1", timezone="Europe/Berlin", day_or=False)),
        (schedules.schedule(timedelta(minutes=5), nowfun=now), Every(300)),
        (
            schedules.solar("sunset", Decimal("52.5"), Decimal("13.4"), nowfun=now),
            Solar("sunset", **place),
        ),
        (clockedschedule.clocked(at), Once(at)),
    ):
        # A crontab names its zone, also if it is that of the owner.
        assert trigger_of(schedule, app=app, timezone="Europe/Berlin") == trigger
