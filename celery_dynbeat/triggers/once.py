"""Once: a single fire time."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Self

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import Trigger, shorten, utc
from celery_dynbeat.triggers.text import format_instant


@dataclass(frozen=True, slots=True, init=False)
class Once(Trigger):
    """Fire at the aware instant ``at``, and never again.

    Raises ``InvalidTriggerError`` with field ``"at"`` when it is naive.
    """

    kind: ClassVar[str] = "once"
    counts_fast: ClassVar[bool] = True

    at: datetime

    def __init__(self, at: datetime) -> None:
        object.__setattr__(self, "at", utc(at, field="at"))

    @classmethod
    def after(cls, delay: timedelta) -> Self:
        """Return a trigger for ``delay`` from now, by this machine's clock."""
        try:
            possible = delay >= timedelta()
        except TypeError:
            # Not a timedelta after all.
            possible = False
        if not possible:
            message = f"the delay is {shorten(delay)}; it must be a timedelta, zero or positive"
            raise InvalidTriggerError(message, field="at")
        try:
            return cls(datetime.now(UTC) + delay)
        except OverflowError as error:
            message = f"the delay {delay} ends after the year 9999; choose a shorter one"
            raise InvalidTriggerError(message, field="at") from error

    @property
    def spec(self) -> str:
        """Return the instant in ISO 8601, in UTC."""
        return format_instant(self.at)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the one fire time if it is still to come."""
        return self.at if self.at > utc(instant, field="instant") else None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the one fire time if it lies in ``(after, until]``."""
        lies_inside = utc(after, field="after") < self.at <= utc(until, field="until")
        return self.at if lies_inside else None

    def phrase(self) -> str:
        """Say the instant, in UTC."""
        return f"once at {self.at.replace(tzinfo=None)} UTC"
