"""What an entry of Celery's beat_schedule says, as a trigger and fields."""

from datetime import UTC, datetime

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from celery_dynbeat import Cron, Every, InvalidScheduleError
from celery_dynbeat.beat_schedule import fields_of
from celery_dynbeat.triggers import Solar


class Lunar(schedule):
    """A kind of schedule that somebody wrote for Celery's own beat."""


@pytest.fixture
def app():
    app = Celery(set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    return app


@pytest.mark.parametrize(
    ("given", "trigger"),
    [
        (90, Every(90)),
        (
            crontab(minute=0, hour="9-11"),
            Cron("0 9-11 * * *", timezone="Europe/Berlin", day_or=False),
        ),
        (solar("sunset", 52.5, 13.4), Solar("sunset", latitude=52.5, longitude=13.4)),
        (Every(months=1), Every(months=1)),
    ],
)
def test_an_entry_says_its_trigger_in_the_zone_of_the_application(app, given, trigger):
    assert fields_of({"task": "t", "schedule": given}, app=app)["trigger"] == trigger


@pytest.mark.parametrize("given", [Lunar(90), "0 9 * * *", None])
def test_what_no_trigger_says_is_refused(app, given):
    with pytest.raises(InvalidScheduleError) as caught:
        fields_of({"task": "t", "schedule": given}, app=app)

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
