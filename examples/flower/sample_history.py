"""Past runs for the charts of the Flower demo: what a month of operation leaves in the table."""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from celery_dynbeat import CalendarDays, ScheduleInfo, Trigger
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run

if TYPE_CHECKING:
    from celery_dynbeat import Dynbeat

DAYS = timedelta(days=30)
#: Of a schedule that fires each minute, only the newest fire times.
NEWEST = 250
#: Typical seconds of each task.
DURATIONS = {"mail.send_digest": 0.2, "calendar.sync": 1.0, "report.build": 4.0}
FAILING_TASK = "feed.fetch"
TRACEBACK = """Traceback (most recent call last):
  File "tasks.py", line 71, in fetch_feed
    raise ConnectionError(f"{url} does not answer")
ConnectionError: https://feed.example does not answer
"""

# The same history at each start.
_random = random.Random(42)  # noqa: S311 - sample data


def write(dynbeat: "Dynbeat", schedules: Sequence[ScheduleInfo]) -> int:
    """Write the past runs of ``schedules`` and return their number."""
    now = dynbeat.context.clock.now()
    found = dynbeat.calendars.list()
    days = {each.name: CalendarDays(each.name, frozenset(each.dates)) for each in found}
    runs = [run for schedule in schedules for run in _runs(schedule, days, now)]

    def work(session: Session) -> None:
        session.add_all(runs)

    dynbeat.context.database.run(work)
    return len(runs)


def _runs(schedule: ScheduleInfo, days: Mapping[str, CalendarDays], now: datetime) -> Iterator[Run]:
    assert schedule.trigger is not None
    trigger = schedule.trigger.resolved(days)
    for fire_time in deque(_fire_times(trigger, now), maxlen=NEWEST):
        yield _run(schedule, fire_time)


def _fire_times(trigger: Trigger, now: datetime) -> Iterator[datetime]:
    instant = trigger.next_after(now - DAYS)
    while instant is not None and instant < now:
        yield instant
        instant = trigger.next_after(instant)


def _run(schedule: ScheduleInfo, fire_time: datetime) -> Run:
    created_at = fire_time + timedelta(milliseconds=_random.uniform(2, 30))
    sent_at = created_at + timedelta(milliseconds=_random.uniform(3, 40))
    started_at = sent_at + timedelta(milliseconds=_random.expovariate(1 / 60))
    seconds = DURATIONS.get(schedule.task, 0.5) * _random.lognormvariate(0, 0.5)
    has_failed = _random.random() < (1 if schedule.task == FAILING_TASK else 0.03)
    return Run(
        id=new_run_id(created_at),
        schedule_id=schedule.id,
        owner=schedule.owner,
        name=schedule.name,
        task=schedule.task,
        fire_at=fire_time,
        status="failed" if has_failed else "succeeded",
        attempt=1,
        created_at=created_at,
        sent_at=sent_at,
        started_at=started_at,
        finished_at=started_at + timedelta(seconds=seconds),
        worker=f"demo{_random.randint(1, 2)}@host",
        worker_pid=1,
        error="ConnectionError: https://feed.example does not answer" if has_failed else None,
        traceback=TRACEBACK if has_failed else None,
    )
