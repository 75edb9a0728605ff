"""The limits for owners. Each error names the limit, and a rejected call writes nothing."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron, Every, InvalidArgumentError
from celery_dynbeat.beat.config_sync import sync
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, execute

OWNER = "user:42"
DAILY = Cron("0 9 * * *")


def owned(dynbeat):
    return dynbeat.schedules.for_owner(OWNER)


def names(dynbeat):
    return [schedule.name for schedule in dynbeat.schedules.list()]


def new(name, *, owner=OWNER, task="t", trigger=MINUTELY):
    return {"owner": owner, "name": name, "task": task, "trigger": trigger}


WRITES = {
    "create": lambda mine, **given: mine.create("new", **given),
    "update": lambda mine, **given: mine.update("n", **given, description="changed"),
    "upsert": lambda mine, **given: mine.upsert("n", **given, description="changed"),
    "create_many": lambda mine, **given: mine._context.app.dynbeat.schedules.create_many(
        [new("a", task="mail.send", trigger=DAILY), {"owner": mine.owner, "name": "new", **given}]
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("trigger", "measured"),
    [
        (Every(299), "299 s"),
        (Cron("0,4 9 * * *", timezone="Asia/Seoul"), "240 s"),
        (Cron("0 9 * * * 0,30"), "30 s"),
    ],
    ids=["every", "cron", "seconds"],
)
def test_a_trigger_below_the_minimum_interval_is_rejected(limited, write, trigger, measured):
    dynbeat = limited(min_interval=300)
    before = owned(dynbeat).create("n", task="t", trigger=Every(300))

    with pytest.raises(InvalidArgumentError) as caught:
        write(owned(dynbeat), task="t", trigger=trigger)

    assert caught.value.field == "trigger"
    for fact in ("dynbeat_min_interval = 300 s", measured, "less often"):
        assert fact in str(caught.value)
    assert list(dynbeat.schedules.list()) == [before]


def test_a_beat_schedule_entry_below_the_limit_is_rejected_by_name(limited, caplog):
    dynbeat = limited()
    dynbeat.app.conf.beat_schedule = {
        "quick": {"task": "t", "schedule": 0.5},
        "slow": {"task": "t", "schedule": 60},
    }

    sync(dynbeat.context)

    assert "slow" in names(dynbeat)
    assert "quick" not in names(dynbeat)
    assert "beat_schedule['quick'] is refused" in caplog.text
    assert "dynbeat_min_interval = 1 s" in caplog.text


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("task", ["os.remove", "Mail.send", "xmail.send"])
def test_a_task_that_is_not_allowed_is_rejected(limited, write, task):
    dynbeat = limited(owner_limits={"*": {"allowed_tasks": ["mail.*", "report"]}})
    before = owned(dynbeat).create("n", task="mail.send", trigger=MINUTELY)

    with pytest.raises(InvalidArgumentError) as caught:
        write(owned(dynbeat), task=task, trigger=MINUTELY)

    assert caught.value.field == "task"
    assert task in str(caught.value)
    assert "dynbeat_owner_limits: allowed_tasks of owner 'user:42' = ['mail.*', 'report']" in str(
        caught.value
    )
    assert list(dynbeat.schedules.list()) == [before]


def test_a_schedule_whose_task_is_no_longer_allowed_cannot_run_or_change(limited):
    owned(limited()).create("n", task="os.remove", trigger=MINUTELY)
    mine = owned(limited(owner_limits={"*": {"allowed_tasks": ["mail.*"]}}))

    with pytest.raises(InvalidArgumentError, match="dynbeat_owner_limits: allowed_tasks"):
        mine.run_now("n")
    with pytest.raises(InvalidArgumentError, match="dynbeat_owner_limits: allowed_tasks"):
        mine.update("n", description="changed")

    assert mine.runs() == []
    assert mine.update("n", task="mail.send").task == "mail.send"


def test_beat_quarantines_a_schedule_whose_task_is_not_allowed(limited, clock):
    dynbeat = limited(owner_limits={"*": {"allowed_tasks": ["mail.*"]}})
    mine, beat = owned(dynbeat), ManualBeat(dynbeat)
    for name in ("good", "bad"):
        mine.create(name, task="mail.send", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET task = 'os.remove' WHERE name = 'bad'")

    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    assert [run.name for run in beat.publisher.sent] == ["good"]
    assert "allowed_tasks of owner 'user:42' = ['mail.*']" in mine.get("bad").error
    assert mine.get("bad").next_run_at is None
