"""The tables of shared calendars. Only schedules that use calendars have rows here."""

from datetime import datetime
from typing import TYPE_CHECKING, cast

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from celery_dynbeat.db.models import NAME_LENGTH, Base, BigId, rename_tables
from celery_dynbeat.db.types import ExactText, LongText, UtcDateTime, utc_now

if TYPE_CHECKING:
    from sqlalchemy import Table

#: Characters of the name of a calendar.
CALENDAR_NAME_LENGTH = 100


class Calendar(Base):
    """A shared calendar of the application. Triggers name it, and beat reads its days.

    An edit that changes the days increments ``version``. Beat then plans the schedules that use the
    calendar again. ``in_force_at`` is when beat finished planning all of them with this version, or
    NULL until then.
    """

    __tablename__ = "dynbeat_calendar"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(ExactText(CALENDAR_NAME_LENGTH), unique=True)
    # A JSON object: each date and its note, or "". The type is not JSON, because no query searches
    # in it, and a process parses each text once.
    dates: Mapped[str] = mapped_column(LongText)
    # Days of the week that are not business days: "sat,sun". "": none.
    weekend: Mapped[str] = mapped_column(ExactText(32), server_default="sat,sun")
    version: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, server_default=utc_now())
    updated_by: Mapped[str] = mapped_column(ExactText(NAME_LENGTH), server_default="")
    # When beat finished planning all schedules with this version. NULL means that beat has not
    # finished yet.
    in_force_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ScheduleCalendar(Base):
    """A schedule whose trigger or quiet hours name a calendar.

    ``planned_with`` is the version of the calendar with which the schedule was last planned. A
    lower one than the version of the calendar means that beat plans the schedule again.
    """

    __tablename__ = "dynbeat_schedule_calendar"

    schedule_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("dynbeat_schedule.id", ondelete="CASCADE"), primary_key=True
    )
    calendar_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("dynbeat_calendar.id", ondelete="RESTRICT"), primary_key=True
    )
    planned_with: Mapped[int]


CALENDARS = cast("Table", Calendar.__table__)
LINKS = cast("Table", ScheduleCalendar.__table__)
# Most processes do not import this module, so the other tables may already have their names.
rename_tables()
