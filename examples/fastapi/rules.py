"""What a user enters as a rule, and the trigger that it means."""

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field

from celery_dynbeat import Cron, Every, InvalidTriggerError, Once, Trigger

DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_UNITS = {"minute": 60, "hour": 3_600, "day": 86_400}
_EVERY = re.compile(r"every (?:(\d{1,4}) )?(minute|hour|day)s?")
_AT = re.compile(
    r"(daily|every day|weekdays|every weekday|(?:every |on )?[a-z]{3,9}s?)"
    r" at (\d{1,2})(?::(\d{2}))? ?(am|pm)?"
)


class EveryRule(BaseModel):
    """Every ``minutes`` minutes."""

    kind: Literal["every"]
    minutes: Annotated[int, Field(ge=1, le=10_080)]

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger."""
        del zone
        return Every(timedelta(minutes=self.minutes))


class DailyRule(BaseModel):
    """At ``at`` on each day, each weekday, or one day of each month."""

    kind: Literal["daily", "weekdays", "monthly"]
    at: time
    day: Annotated[int, Field(ge=1, le=31)] = 1

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger."""
        del zone
        day, weekdays = "*", "*"
        if self.kind == "monthly":
            day = str(self.day)
        elif self.kind == "weekdays":
            weekdays = "mon-fri"
        return Cron(f"{self.at.minute} {self.at.hour} {day} * {weekdays}")


class OnceRule(BaseModel):
    """Once, at the wall-clock time ``at`` of the user."""

    kind: Literal["once"]
    at: datetime

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger."""
        return Once(self.at if self.at.tzinfo else self.at.replace(tzinfo=zone))


class CronRule(BaseModel):
    """A cron expression."""

    kind: Literal["cron"]
    text: Annotated[str, Field(min_length=1, max_length=200)]

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger."""
        del zone
        return Cron(self.text)


class WordsRule(BaseModel):
    """Words such as "every 5 minutes", "weekdays at 9:00" or "monday at 8 am"."""

    kind: Literal["words"]
    text: Annotated[str, Field(min_length=1, max_length=200)]

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger."""
        del zone
        words = " ".join(self.text.lower().split())
        found = _interval(words) or _wall_clock(words)
        if found is None:
            raise InvalidTriggerError(
                f"{self.text!r} is not understood; write 'every 5 minutes', 'daily at 9:00',"
                " 'weekdays at 9' or 'monday at 8 am'"
            )
        return found


Rule = Annotated[
    EveryRule | DailyRule | OnceRule | CronRule | WordsRule, Field(discriminator="kind")
]


def _interval(words: str) -> Trigger | None:
    match = _EVERY.fullmatch(words)
    return Every(int(match[1] or 1) * _UNITS[match[2]]) if match else None


def _wall_clock(words: str) -> Trigger | None:
    match = _AT.fullmatch(words)
    if match is None:
        return None
    hour, minute = int(match[2]), int(match[3] or 0)
    if match[4] is not None:
        hour = hour % 12 + (12 if match[4] == "pm" else 0)
    day = _weekday(match[1])
    return None if day is None else Cron(f"{minute} {hour} * * {day}")


def _weekday(words: str) -> str | None:
    if words in {"daily", "every day"}:
        return "*"
    if words in {"weekdays", "every weekday"}:
        return "mon-fri"
    day = words.rsplit(maxsplit=1)[-1][:3]
    return day if day in DAYS else None
