"""What a user enters as a rule, and the trigger that it means."""

from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from celery_dynbeat import Cron, Every, Once, Trigger


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


Rule = Annotated[EveryRule | DailyRule | OnceRule | CronRule, Field(discriminator="kind")]
