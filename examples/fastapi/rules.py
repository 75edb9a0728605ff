"""What a user enters as a rule, and the trigger that it means."""

from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from celery_dynbeat import Cron, Every, InvalidTriggerError, Once, Trigger


def _whole_minute(at: time) -> time:
    if at.tzinfo or at.second or at.microsecond:
        raise PydanticCustomError("clock", "must be a time such as 09:00, without seconds and zone")
    return at


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
    at: Annotated[time, AfterValidator(_whole_minute)]
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
    """Words such as "every 5 minutes", "weekdays at 9:00" or "first of the month at 8 am"."""

    kind: Literal["words"]
    text: Annotated[str, Field(min_length=1, max_length=200)]

    def trigger(self, zone: ZoneInfo) -> Trigger:
        """Return the trigger. Only a date needs ``zone``: other rules follow the user's zone."""
        trigger = Trigger.from_words(self.text, date_timezone=str(zone))
        if trigger.kind == "rrule":
            # Its fire times can occupy the event loop ten times as long as the fire times of a
            # Cron.
            raise InvalidTriggerError("Write words or a cron expression.", field="trigger")
        return trigger


Rule = Annotated[
    EveryRule | DailyRule | OnceRule | CronRule | WordsRule, Field(discriminator="kind")
]
