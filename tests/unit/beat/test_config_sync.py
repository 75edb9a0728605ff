"""An entry of Celery's beat_schedule becomes a trigger and fields of the API."""

from datetime import UTC, datetime

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from celery_dynbeat import Cron, Every, InvalidArgumentError
from celery_dynbeat.api import Changes
from celery_dynbeat.beat.config_entries import fields_of
from celery_dynbeat.triggers import Solar

END = datetime(2030, 1, 1, tzinfo=UTC)
EXPIRY = "expires_after"


class Lunar(schedule):
    """A custom schedule for Celery's own beat."""


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
def test_a_crontab_of_an_entry_gets_the_time_zone_of_the_application(app, given, trigger):
    assert fields_of({"task": "t", "schedule": given}, app=app)["trigger"] == trigger


@pytest.mark.parametrize("given", [Lunar(90), "0 9 * * *", None])
def test_a_schedule_that_is_no_trigger_is_rejected(app, given):
    with pytest.raises(InvalidArgumentError) as caught:
        fields_of({"task": "t", "schedule": given}, app=app)

    assert caught.value.field == "schedule"


def test_the_expires_option_becomes_expires_after(app):
    entry = {"task": "t", "schedule": 5, "options": {"expires": 60, "queue": "q"}}

    fields = fields_of(entry, app=app)

    assert fields["expires_after"] == 60
    assert fields["options"] == {"queue": "q"}


def test_the_fields_of_an_entry_are_all_fields_of_the_api(app):
    # A field that the entry does not have returns to its default, so no field may be missing.
    fields = fields_of({"task": "t", "schedule": 5}, app=app)

    assert fields.keys() == Changes.__annotations__.keys() - {"queue", "priority"}
    own = fields.keys() - {"task", "trigger", "args", "kwargs", "options", "description", "tags"}
    assert {fields[key] for key in own} == {None}


def test_policies_are_keys_of_an_entry_like_those_of_celery(app):
    entry = {"task": "t", "schedule": 5, "overlap": "skip", "window": 3, "end_at": END}

    fields = fields_of(entry, app=app)

    assert (fields["overlap"], fields["window"], fields["end_at"]) == ("skip", 3, END)


def test_policies_given_to_add_periodic_task_are_taken_from_the_options(app):
    @app.task(name="t", shared=False)
    def task():
        """Do nothing."""

    app.add_periodic_task(5, task.s(), name="n", overlap="skip", queue="q")

    fields = fields_of(app.conf.beat_schedule["n"], app=app)
    assert (fields["overlap"], fields["options"]) == ("skip", {"queue": "q"})


def test_celery_report_accepts_the_keys_of_an_entry(app):
    entry = {"task": "t", "schedule": Cron("0 9 * * mon-fri"), "overlap": "skip"}
    app.conf.beat_schedule = {"n": entry}

    assert "0 9 * * mon-fri" in app.bugreport()


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("text", "entry"),
        ({"task": "t", "schedule": 5, "colour": 1}, "colour"),
        ({"task": "t", "schedule": 5, 7: 1}, "7"),
        (
            {"task": "t", "schedule": 5, "overlap": "skip", "options": {"overlap": "skip"}},
            "overlap",
        ),
        ({"task": "t", "schedule": 5, "expires_after": 5, "options": {"expires": 5}}, EXPIRY),
        ({"task": "t", "schedule": 5, "options": {"expires": 5, "expires_after": 5}}, EXPIRY),
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
def test_an_invalid_entry_is_rejected_and_the_error_names_the_field(app, entry, field):
    with pytest.raises(InvalidArgumentError) as caught:
        fields_of(entry, app=app)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("overlaps", "did you mean overlap"),
        ("queue", "go into 'options'"),
        ("enabled", "leave the entry out, or pause its schedule"),
    ],
)
def test_the_error_for_an_unknown_key_has_a_hint(app, key, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        fields_of({"task": "t", "schedule": 5, key: "x"}, app=app)
