"""The public API as an application uses it. mypy --strict checks this file; it never runs."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, assert_type

from celery import Celery
from celery.schedules import crontab
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AnyOf,
    BackfillInfo,
    Cron,
    Dynbeat,
    Every,
    Once,
    Page,
    RRule,
    RunInfo,
    ScheduleInfo,
    Solar,
    Trigger,
    trigger_from_text,
)
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.celery_schedules import schedule_of, trigger_of
from celery_dynbeat.client import NewSchedule, OwnerSchedules
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.testing import FrozenClock, ManualBeat, RecordingPublisher, override

app = Celery("typed")
clock = FrozenClock(datetime(2026, 11, 21, tzinfo=UTC))
dynbeat = Dynbeat(app, engine=create_engine("sqlite://"), clock=clock)

mine = dynbeat.schedules.for_owner("user:42")
assert_type(mine, OwnerSchedules)

made = mine.create(
    "digest",
    task="mail.send",
    trigger=Cron("0 9 * * *", timezone="Asia/Seoul"),
    kwargs={"user_id": 42},
    queue="mail",
    expires_after=timedelta(minutes=5),
)
assert_type(made, ScheduleInfo)
monthly = Every(months=1, anchor=clock.now(), timezone="Europe/Berlin")
either: Trigger = AnyOf(monthly, RRule("FREQ=WEEKLY"), Solar("sunrise", latitude=1, longitude=2))
assert_type(either.next_after(clock.now()), datetime | None)
assert_type(either.describe(), str)
without: Trigger = either.excluding(date(2026, 12, 25), Cron("0 0 1 1 *"), timezone="UTC")
assert_type(trigger_of(300, timezone="UTC"), Trigger)
assert_type(schedule_of(Every(300), app=app), Any)
mine.create(
    "policies",
    task="t",
    trigger=without,
    overlap="buffer_one",
    max_run_time=timedelta(minutes=5),
    jitter=30,
    on_lost="rerun",
    pause_after_failures=3,
    catch_up="all",
    catch_up_window=None,
)
send = app.task(print)
mine.create("crontab", task=send, trigger=crontab(minute=0, hour=9))
mine.create("text", task="t", trigger="0 9 * * mon-fri", enabled=False, paused_reason="unpaid")
mine.upsert("duration", task=send, trigger=timedelta(minutes=5))
mine.update("instant", trigger=datetime(2026, 11, 21, tzinfo=UTC))
assert_type(trigger_from_text("PT5M"), Trigger)
assert_type(Once.after(5).at, datetime)
assert_type(Once.after(timedelta(minutes=5)).delay, timedelta | None)
assert_type(made.trigger, Trigger | None)
assert_type(made.next_run_at, datetime | None)
assert_type(mine.update("digest", trigger=Every(300), expected_version=3), ScheduleInfo)
assert_type(mine.upsert("x", task="t", trigger=Once.after(timedelta(minutes=5))), ScheduleInfo)
assert_type(mine.pause("digest", reason="on holiday"), ScheduleInfo)
assert_type(mine.resume("digest"), ScheduleInfo)
assert_type(mine.run_now("digest"), RunInfo)
assert_type(mine.upcoming("digest", count=5), Sequence[datetime])
assert_type(mine.list(tag="red", limit=10), Page)
assert_type(mine.list()[0], ScheduleInfo)
assert_type(mine.list().cursor, str | None)
assert_type(mine.runs("digest", status="failed", since=clock.now()), Sequence[RunInfo])
assert_type(mine.run_now("digest").lag, timedelta | None)
past = mine.backfill("digest", start=clock.now(), end=clock.now(), batch_size=10)
assert_type(past, BackfillInfo)
assert_type(past.progress, float)
assert_type(mine.backfills("digest"), Sequence[BackfillInfo])
assert_type(mine.cancel_backfill("digest", past.id), BackfillInfo)
mine.delete("digest")

many: list[NewSchedule] = [{"name": "n", "task": "t", "trigger": Every(5), "tags": ["a"]}]
many.append({"name": "m", "task": send, "trigger": "PT5M", "enabled": False})
assert_type(dynbeat.schedules.create_many(many), int)
assert_type(dynbeat.schedules.delete_owner("user:42"), int)
with Session() as session:
    mine.create("joined", task="t", trigger=Every(5), session=session)

beat = ManualBeat(dynbeat)
assert_type(beat, ManualBeat[RecordingPublisher])
assert_type(beat.publisher.sent, list[OutgoingRun])
assert_type(beat.tick(), timedelta)
assert_type(ManualBeat(dynbeat, Publisher(app)), ManualBeat[Publisher])
assert_type(ManualBeat(dynbeat, run_tasks=True), ManualBeat[RecordingPublisher])
assert_type(FrozenClock(clock.now()).advance(61), datetime)
with override(dynbeat, database="sqlite://", clock=clock) as overridden:
    assert_type(overridden, Dynbeat)

# Each line must be a type error: otherwise mypy reports an unused ignore.
mine.create("n", task="t", trigger=5)  # type: ignore[arg-type]
mine.create("n", task=5, trigger=Every(5))  # type: ignore[arg-type]
mine.update("n", enabled=False)  # type: ignore[call-arg]
mine.update("n", trigger=None)  # type: ignore[arg-type]
mine.create("n", task="t", trigger=Every(5), colour="red")  # type: ignore[call-arg]
mine.create("n", task="t", trigger=Every(5), max_runs="2")  # type: ignore[arg-type]
mine.create("n", "t", Every(5))  # type: ignore[call-arg]
