"""The public API as an application uses it. mypy --strict checks this file; it never runs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Unpack, assert_type

from celery import Celery
from celery.schedules import crontab
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AlertInfo,
    AnyOf,
    AsyncDynbeat,
    BatchInfo,
    BoundedCount,
    BulkResult,
    CalendarInfo,
    ChangeInfo,
    Cron,
    CurrentRun,
    Dynbeat,
    Every,
    Explanation,
    FireTime,
    ForecastInfo,
    HoldInfo,
    Once,
    OwnerLimits,
    Page,
    Preview,
    QuietHours,
    Retry,
    RRule,
    RunInfo,
    ScheduleInfo,
    SkipRun,
    Solar,
    Trigger,
    Usage,
    current_run,
    note,
)
from celery_dynbeat.api import NewSchedule, OwnerSchedules
from celery_dynbeat.api.async_calls import (
    AsyncCalendars,
    AsyncOwnerSchedules,
    AsyncSchedules,
)
from celery_dynbeat.api.filters import RunKeywords
from celery_dynbeat.api.results import BulkFailure, QuietHoursInfo
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.celery_schedules import schedule_of, trigger_of
from celery_dynbeat.testing import FrozenClock, ManualBeat, RecordingPublisher, override

app = Celery("typed")
clock = FrozenClock(datetime(2026, 11, 21, tzinfo=UTC))
dynbeat = Dynbeat(app, engine=create_engine("sqlite://"), clock=clock)

mine = dynbeat.schedules.for_owner("user:42")
assert_type(dynbeat.schedules.list(owner_prefix="org:7/"), Page[ScheduleInfo])
assert_type(mine.runs(status="failed"), Page[RunInfo])
assert_type(mine.usage(), Usage)
limits = OwnerLimits(min_interval=timedelta(hours=1), allowed_tasks=["report.*"])
assert_type(mine, OwnerSchedules)
assert_type(dynbeat.calendars.list(limit=5), Page[CalendarInfo])

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
    window=30,
    on_lost="rerun",
    pause_after_failures=3,
    retry=Retry(max_retries=3, backoff=timedelta(minutes=1), backoff_max=timedelta(hours=1)),
    catch_up="all",
    catch_up_window=None,
    finish_within=timedelta(minutes=2),
    ping_url="https://hc-ping.com/5f0c",
)
send = app.task(print)
mine.create("crontab", task=send, trigger=crontab(minute=0, hour=9))
mine.create("text", task="t", trigger="0 9 * * mon-fri", enabled=False)
mine.pause("text", until=timedelta(days=2))
mine.upsert("duration", task=send, trigger=timedelta(minutes=5))
mine.update("instant", trigger=datetime(2026, 11, 21, tzinfo=UTC))
assert_type(Trigger.from_text("PT5M"), Trigger)
assert_type(mine.update("digest", trigger=Every(300), expected_version=3), ScheduleInfo)
assert_type(mine.upsert("x", task="t", trigger=Once.after(timedelta(minutes=5))), ScheduleInfo)
assert_type(mine.bound(actor="alice").pause("digest", reason="on holiday"), ScheduleInfo)
assert_type(mine.resume("digest"), ScheduleInfo)
assert_type(mine.run_now("digest"), RunInfo)
assert_type(mine.rerun("01a1fd56-64e0-786c-ae7b-f20dde6af188"), RunInfo)
again = mine.rerun_many(
    since=clock.now(), until=None, status=["failed"], name="digest", per_minute=5
)
assert_type(again, BatchInfo)
assert_type(mine.get_batch("01a1fd56-64e0-786c-ae7b-f20dde6af188"), BatchInfo)
assert_type(mine.cancel_runs(batch_id="01a1fd56-64e0-786c-ae7b-f20dde6af188"), int)
assert_type(dynbeat.schedules.rerun_many(owner="ann", since=clock.now()), BatchInfo)
fire_times = mine.upcoming("digest", with_skipped=True)
assert_type(fire_times, Sequence[FireTime])
assert_type(mine.explain("n", at=None), Explanation)
assert_type(mine.forecast(per="hour", queue="celery"), ForecastInfo)
assert_type(mine.skip("digest", fire_times[0].fire_at, reason="holiday"), ScheduleInfo)
assert_type(mine.list(tag="red", limit=10), Page[ScheduleInfo])
assert_type(mine.list(state="failing", name_prefix="rep", order="next_run_at"), Page[ScheduleInfo])
assert_type(dynbeat.schedules.count(owner=None, state="overdue"), BoundedCount)
assert_type(mine.runs("digest", status="failed", since=clock.now()), Page[RunInfo])
assert_type(mine.get_run(mine.runs()[0].id), RunInfo)
assert_type(dynbeat.schedules.runs(owner=None, origin="manual", after=None), Page[RunInfo])
assert_type(mine.changes("digest", actor="alice", since=clock.now(), limit=20), Page[ChangeInfo])
assert_type(dynbeat.schedules.changes(action="delete")[0], ChangeInfo)
past = mine.backfill("digest", since=clock.now(), until=clock.now(), per_minute=10)
assert_type(past, BatchInfo)
assert_type(mine.set_timezone("Asia/Seoul"), int)
assert_type(mine.timezone(), str)
assert_type(mine.set_quiet_hours([QuietHours("22:00", "07:00"), "sat 10:00-11:00"]), int)
assert_type(mine.quiet_hours(), Sequence[QuietHoursInfo])
assert_type(mine.clear_quiet_hours(), int)
shown = mine.preview("0 9 * * mon-fri", "digest", 3, window=30, end_at=clock.now())
assert_type(shown, Preview)
mine.delete("digest")

many: list[NewSchedule] = [{"name": "n", "task": "t", "trigger": Every(5), "tags": ["a"]}]
many.append({"name": "m", "task": send, "trigger": "PT5M", "enabled": False})
assert_type(dynbeat.schedules.create_many(many), Sequence[ScheduleInfo])
assert_type(mine.bound(actor="alice", reason="ticket 12").create_many(many), Sequence[ScheduleInfo])
assert_type(mine.pause_many(tag="x", expected=2, reason="ticket 12"), BulkResult)
assert_type(dynbeat.schedules.resume_many(state="paused").failures, Sequence[BulkFailure])
assert_type(mine.update_many({"queue": "slow", "window": 5}, everything=True), BulkResult)
assert_type(dynbeat.schedules.delete_many(owner=None, tag="x").changed, int)
assert_type(dynbeat.schedules.delete_owner("user:42"), int)
dynbeat.schedules.delete_owner("user:42", erase_history=True, progress=print)
assert_type(mine.export(), Iterator[dict[str, Any]])
with dynbeat.acting(actor="alice@example.com", reason="ticket 12") as nothing:
    assert_type(nothing, None)
with Session() as session:
    mine.bound(session=session).create("joined", task="t", trigger=Every(5))

beat = ManualBeat(dynbeat)
assert_type(beat.publisher, RecordingPublisher)
assert_type(beat.tick(), timedelta)
ManualBeat(dynbeat, Publisher(app))
assert_type(ManualBeat(dynbeat, run_tasks=True), ManualBeat)
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
mine.list(colour="red")  # type: ignore[call-arg]
mine.runs(status=5)  # type: ignore[arg-type]
mine.cancel_runs(until="now")  # type: ignore[arg-type]
assert_type(mine.rename("n", "m", expected_version=1), ScheduleInfo)
mine.pause_many(colour="red")  # type: ignore[call-arg]
mine.update_many({"colour": "red"})  # type: ignore[typeddict-unknown-key]

assert_type(SkipRun("nothing to do").reason, str)
note("12 mails")
run_of_task = current_run()
assert_type(run_of_task, CurrentRun | None)
if run_of_task is not None:
    assert_type((run_of_task.run_id, run_of_task.owner, run_of_task.schedule), tuple[str, str, str])
    assert_type((run_of_task.fire_at, run_of_task.attempt), tuple[datetime, int])
    assert_type((run_of_task.origin, run_of_task.last_success_at), tuple[str, datetime | None])

assert_type(mine.hold(reason="ticket 12", until=clock.now()), HoldInfo)
assert_type(mine.holds(), Page[HoldInfo])
assert_type(mine.alerts(only_open=False), Page[AlertInfo])
assert_type(mine.bound(actor="bob").release(), HoldInfo | None)
with dynbeat.acting(actor="alice"):
    assert_type(dynbeat.schedules.hold(reason="incident"), HoldInfo)
assert_type(dynbeat.schedules.release(), HoldInfo | None)


def failed_runs(**matching: Unpack[RunKeywords]) -> Page[RunInfo]:
    return mine.runs("digest", **matching)


async def awaited() -> None:
    made_async = AsyncDynbeat(app, clock=clock)
    assert_type(made_async.sync, Dynbeat)
    assert_type(made_async.schedules, AsyncSchedules)
    assert_type(made_async.calendars, AsyncCalendars)
    assert_type(await made_async.calendars.upsert("holidays", dates=[date.max]), CalendarInfo)
    own = made_async.schedules.for_owner("user:42")
    assert_type(own, AsyncOwnerSchedules)
    assert_type(await made_async.schedules.usage("user:42"), Usage)
    with made_async.acting(actor="alice"):
        assert_type(await own.pause("digest", reason="on holiday"), ScheduleInfo)
    assert_type(await own.update("digest", window=5), ScheduleInfo)
    assert_type(await own.upcoming("digest", with_skipped=True), Sequence[FireTime])
    assert_type(await own.explain("n"), Explanation)
    assert_type(await own.forecast(), ForecastInfo)
    assert_type(await own.list(limit=5, tag="red"), Page[ScheduleInfo])
    assert_type(await own.get_run("r"), RunInfo)
    await own.list(colour="red")  # type: ignore[call-arg]
    async for line in own.export():
        assert_type(line, dict[str, Any])
    async with AsyncSession(create_async_engine("sqlite+aiosqlite://")) as async_session:
        new = await own.bound(session=async_session).create(
            "n", task="t", trigger="@daily", queue="q"
        )
        assert_type(new, ScheduleInfo)
        await own.bound(session=Session()).create("n", task="t", trigger="@daily")  # type: ignore[arg-type]
        await own.create("n", task="t", trigger="@daily", quue="q")  # type: ignore[call-arg]
    await made_async.dispose()
