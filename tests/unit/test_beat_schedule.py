"""What an entry of Celery's beat_schedule says, as a trigger and fields."""

from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from celery_dynbeat import Cron, Every, InvalidScheduleError
from celery_dynbeat.beat_schedule import fields_of, trigger_of


class Lunar(schedule):
    """A kind of schedule that somebody wrote for Celery's own beat."""


@pytest.fixture
def app():
    app = Celery(set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    return app


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute="*/15"), "*/15 * * * *"),
        (crontab(minute=0, hour="9-11"), "0 9,10,11 * * *"),
        (crontab(minute=0, hour=0, day_of_week="sun,mon"), "0 0 * * 0,1"),
        (crontab(minute=5, hour=4, day_of_month="1-3", month_of_year="*/6"), "5 4 1,2,3 */6 *"),
    ],
)
def test_a_crontab_becomes_a_cron_in_the_zone_of_the_application(app, given, text):
    assert trigger_of(given, app=app) == Cron(text, timezone="Europe/Berlin", day_or=False)


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90), schedule(90)])
def test_a_number_or_a_timedelta_becomes_an_interval(app, given):
    assert trigger_of(given, app=app) == Every(90)


def test_a_trigger_of_ours_stays_itself(app):
    assert trigger_of(Every(5), app=app) == Every(5)


@pytest.mark.parametrize(
    "given",
    [
        Lunar(90),
        schedule(90, relative=True),
        crontab(nowfun=lambda: datetime.now(UTC)),
    ],
    ids=["lunar", "relative", "nowfun"],
)
def test_what_no_trigger_says_is_refused(app, given):
    with pytest.raises(InvalidScheduleError) as caught:
        trigger_of(given, app=app)

    assert caught.value.field == "schedule"


def test_an_expiry_becomes_the_schedules_own(app):
    entry = {"task": "t", "schedule": 5, "options": {"expires": 60, "queue": "q"}}

    assert fields_of(entry, app=app) == {
        "task": "t",
        "trigger": Every(5),
        "args": (),
        "kwargs": {},
        "options": {"queue": "q"},
        "expires_after": 60,
    }


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("text", "entry"),
        ({"task": "t", "schedule": 5, "colour": 1}, "colour"),
        ({"task": "t", "schedule": 5, "relative": True}, "relative"),
        (
            {
                "task": "t",
                "schedule": 5,
                "options": {"expires": datetime(2026, 1, 1, tzinfo=UTC)},
            },
            "options['expires']",
        ),
    ],
)
def test_an_entry_that_cannot_be_kept_is_refused_by_its_field(app, entry, field):
    with pytest.raises(InvalidScheduleError) as caught:
        fields_of(entry, app=app)

    assert caught.value.field == field
