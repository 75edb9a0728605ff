"""Schedules of some users in all states, for the Flower demo."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import update
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, Once, ScheduleInfo
from celery_dynbeat.db.models import Schedule

if TYPE_CHECKING:
    from celery_dynbeat import Dynbeat
    from celery_dynbeat.api import OwnerSchedules

USERS = range(1, 13)
ZONES = ("Asia/Seoul", "Europe/Berlin", "America/New_York", "UTC")
SECONDS = timedelta(seconds=1)
HOLIDAYS = "public-holidays"
HELD, BUSY, CARELESS = "user:11", "user:12", "user:10"


def create(dynbeat: "Dynbeat") -> Sequence[ScheduleInfo]:
    """Create a calendar and the schedules, and return the schedules."""
    with dynbeat.acting(actor="admin@example.com"):
        dynbeat.calendars.upsert(HOLIDAYS, dates=_holidays())
    for number in USERS:
        with dynbeat.acting(actor=f"user{number}@example.com"):
            _create_of_user(dynbeat.schedules.for_owner(f"user:{number}"), number)
    with dynbeat.acting(actor="admin@example.com"):
        _create_of_application(dynbeat.schedules.for_owner(""))
        _create_busy(dynbeat.schedules.for_owner(BUSY))
        _create_careless(dynbeat.schedules.for_owner(CARELESS))
    return dynbeat.schedules.list(limit=1_000)


def change_states(dynbeat: "Dynbeat") -> None:
    """Pause one schedule, hold one owner, and damage one row."""
    with dynbeat.acting(actor="user3@example.com"):
        dynbeat.schedules.for_owner("user:3").pause("digest", reason="on holiday")
    with dynbeat.acting(actor="admin@example.com"):
        dynbeat.schedules.for_owner(HELD).hold(reason="unpaid invoice")
    dynbeat.context.database.run(_damage)


def _holidays() -> Sequence[date]:
    """Return the next New Year's Days, Labour Days and Christmas Days."""
    year = datetime.now(UTC).year
    return [date(year + n, *day) for n in range(2) for day in ((1, 1), (5, 1), (12, 25))]


def _create_of_user(mine: "OwnerSchedules", number: int) -> None:
    zone = ZONES[number % len(ZONES)]
    mine.set_timezone(zone)
    user = {"user_id": number}
    weekdays = Cron(f"{number * 4} 9 * * mon-fri")
    mine.create("digest", task="mail.send_digest", kwargs=user, trigger=weekdays, tags=["mail"])
    interval = Every((20 + 5 * number) * SECONDS)
    mine.create("sync", task="calendar.sync", kwargs=user, trigger=interval, tags=["calendar"])
    weekly = Cron("0 18 * * fri").on_business_day("previous", calendar=HOLIDAYS)
    mine.create("weekly", task="report.build", args=["weekly"], trigger=weekly)
    first_of_month = Cron("30 7 1 * *")
    mine.create("invoice", task="report.build", args=["invoice"], trigger=first_of_month)


def _create_of_application(ours: "OwnerSchedules") -> None:
    nightly = Cron("0 3 * * *", timezone="UTC")
    ours.create("cleanup", task="report.build", args=["cleanup"], trigger=nightly, tags=["ops"])
    hourly = Cron("0 * * * *", timezone="UTC")
    ours.create("figures", task="report.build", args=["figures"], trigger=hourly, tags=["ops"])
    welcome = Once.after(5 * SECONDS)
    ours.create("announcement", task="mail.send_digest", args=[0], trigger=welcome)


def _create_busy(mine: "OwnerSchedules") -> None:
    # It runs for twice as long as its interval.
    mine.create(
        "heavy report",
        task="report.build",
        kwargs={"kind": "heavy", "seconds": 60},
        trigger=Every(30 * SECONDS),
        overlap="skip",
        description="Takes longer than its interval. Fire times meanwhile are skipped.",
    )
    url = "https://slow.example"
    mine.create("slow feed", task="feed.fetch_slowly", args=[url], trigger=Every(15 * SECONDS))


def _create_careless(mine: "OwnerSchedules") -> None:
    url = "https://feed.example"
    mine.create("feed", task="feed.fetch", args=[url], trigger=Every(20 * SECONDS), tags=["feed"])
    # Text of users is never read as HTML.
    markup = "<b>bold</b> & \"quoted\" '=1+1'"
    mine.create(markup, task="mail.send_digest", args=[10], trigger=Cron("*/10 * * * *"))
    mine.create("damaged", task="mail.send_digest", args=[10], trigger=Every(3 * SECONDS))


def _damage(session: Session) -> None:
    # As after a manual edit of the table. Beat quarantines the row.
    damaged = update(Schedule).where(Schedule.owner == CARELESS, Schedule.name == "damaged")
    session.execute(damaged.values(trigger_kind="cron", trigger_spec="every tuesday"))
