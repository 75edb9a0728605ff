"""Conversion of the accepted types to a trigger or the name of a task."""

import functools
from datetime import UTC, date, datetime, timedelta

import pytest
from celery import Celery, chain, chord, group
from celery.local import PromiseProxy
from celery.schedules import crontab, schedule, solar

from celery_dynbeat import Cron, Every, InvalidArgumentError, InvalidTriggerError, Once, RRule
from celery_dynbeat.api.field_types import task_name
from celery_dynbeat.api.fields import trigger_of
from celery_dynbeat.triggers import Solar

NINE = datetime(2026, 11, 21, 9, tzinfo=UTC)


@pytest.fixture
def app():
    made = Celery("shop", set_as_current=False)
    made.conf.timezone = "Asia/Seoul"
    return made


@pytest.fixture
def send(app):
    @app.task(name="mail.send", shared=False)
    def send():
        """Send."""

    return send


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Cron("0 9 * * *"), Cron("0 9 * * *")),
        ("0 9 * * mon-fri", Cron("0 9 * * mon-fri")),
        ("@daily", Cron("@daily")),
        ("PT5M", Every(300)),
        ("FREQ=DAILY", RRule("FREQ=DAILY")),
        (timedelta(minutes=5), Every(300)),
        (NINE, Once(NINE)),
        (crontab(minute=0, hour=9), Cron("0 9 * * *", timezone="Asia/Seoul")),
        (schedule(300), Every(300)),
        (solar("sunset", 37.5, 127), Solar("sunset", latitude=37.5, longitude=127)),
    ],
    ids=repr,
)
def test_each_accepted_type_converts_to_a_trigger(app, given, expected):
    assert trigger_of(given, app=app) == expected


def test_a_crontab_keeps_the_time_zone_of_its_own_application(app):
    other = Celery("other", set_as_current=False)
    other.conf.timezone = "Europe/Berlin"

    assert trigger_of(crontab(hour=9, app=other), app=app).timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "must be a trigger"),
        (300, "write Every"),
        (True, "must be a trigger"),
        (date(2026, 11, 21), "an aware datetime"),
        ({"kind": "cron", "spec": "* * * * *"}, "Trigger.from_json"),
        (crontab(nowfun=datetime.now), "without relative and nowfun"),
        (schedule(300, relative=True), "without relative and nowfun"),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_rejected_with_the_accepted_types(app, given, reason):
    with pytest.raises(InvalidArgumentError, match=reason) as refusal:
        trigger_of(given, app=app)

    assert refusal.value.field == "trigger"


@pytest.mark.parametrize(
    ("given", "field"),
    [("0 25 * * *", "hour"), (NINE.replace(tzinfo=None), "at"), (timedelta(0), "interval")],
    ids=repr,
)
def test_an_invalid_value_is_rejected_with_the_field_of_the_trigger(app, given, field):
    with pytest.raises(InvalidTriggerError) as refusal:
        trigger_of(given, app=app)

    assert refusal.value.field == field


def test_a_task_is_accepted_as_a_name_or_as_a_celery_task(send):
    proxy = PromiseProxy(lambda: send)

    assert [task_name("task", each) for each in ("mail.send", send, proxy)] == ["mail.send"] * 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda task: task.s(), "is a signature: .* args= and kwargs="),
        (lambda task: chain(task.si(), task.si()), "is a chain: .* write a task that starts"),
        (lambda task: group(task.si(), task.si()), "is a group: .* write a task that starts"),
        (lambda task: chord([task.si()], task.si()), "is a chord: .* write a task that starts"),
        (lambda _: functools.partial(print), "must be the name of a task, or a Celery task"),
        (lambda _: None, "task = None: must be the name of a task"),
    ],
)
def test_a_value_that_is_not_a_task_is_rejected_with_the_fix(send, make, reason):
    with pytest.raises(InvalidArgumentError, match=reason) as refusal:
        task_name("task", make(send))

    assert refusal.value.field == "task"


def test_the_error_for_a_signature_does_not_contain_its_arguments(send):
    with pytest.raises(InvalidArgumentError) as refusal:
        task_name("task", send.s("secret"))

    assert "secret" not in str(refusal.value)
