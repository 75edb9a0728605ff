"""Once: a single fire time."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Self

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import SAMPLE, Trigger, utc
from celery_dynbeat.triggers.text import (
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from celery_dynbeat.triggers.words import say_duration

_LONGEST = timedelta(days=36525)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Once(Trigger):
    """Fire at the aware instant ``at``, and never again.

    ``Once.after(delay)`` has no instant yet. A schedule gives it one when it is stored: the
    present, by the database's clock, and the delay. Until then ``delay`` holds the delay, and fire
    times count from the instant that is asked about. ``delay`` is None for any other.

    Raises ``InvalidTriggerError`` with field ``"at"`` when the instant is naive.
    """

    kind: ClassVar[str] = "once"
    counts_fast: ClassVar[bool] = True

    _at: datetime | None = field(init=False)
    delay: timedelta | None = field(init=False)

    def __init__(self, at: datetime) -> None:
        object.__setattr__(self, "_at", utc(at, field="at"))
        object.__setattr__(self, "delay", None)

    @classmethod
    def after(cls, delay: timedelta | float) -> Self:
        """Return a trigger for ``delay`` (a timedelta or seconds) after the schedule is stored.

        Raises ``InvalidTriggerError`` with field ``"at"``.
        """
        pending = object.__new__(cls)
        object.__setattr__(pending, "_at", None)
        object.__setattr__(pending, "delay", _checked(delay))
        return pending

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an instant, or for a delay such as ``PT40H``."""
        del timezone
        if not spec.lstrip().upper().startswith("P"):
            return cls(parse_instant(spec, field="at"))
        delay = parse_duration(spec)
        if isinstance(delay, timedelta):
            return cls.after(delay)
        message = f"{shorten(spec)} is of the calendar; a delay is elapsed time, such as PT24H"
        raise InvalidTriggerError(message, field="at")

    def __repr__(self) -> str:
        return f"Once({self._at!r})" if self.delay is None else f"Once.after({self.delay!r})"

    @property
    def at(self) -> datetime:
        """Return the instant, in UTC.

        Raises ``InvalidTriggerError`` for ``Once.after(delay)``, which has none yet.
        """
        if self._at is None:
            message = (
                f"{self!r} has no instant before a schedule is stored with it: read the trigger"
                " that create() returns, or call resolved_at(datetime.now(UTC))"
            )
            raise InvalidTriggerError(message, field="at")
        return self._at

    @property
    def spec(self) -> str:
        """Return the instant in ISO 8601, in UTC; before there is one, the delay: ``PT40H``."""
        return format_instant(self.at) if self.delay is None else format_duration(self.delay)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the one fire time if it is still to come."""
        at = self._from(utc(instant, field="instant"))
        return at if at is not None and at > instant else None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the one fire time if it lies in ``(after, until]``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        at = self._from(after)
        return at if at is not None and after < at <= until else None

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Return 1 if the one fire time lies in ``(after, until]``, else 0."""
        return 0 if self.latest_until(after=after, until=until) is None else min(max(limit, 0), 1)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return None: there are no two fire times."""
        del after, sample
        return None

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with its delay counted from ``instant``, if it has one."""
        return self.resolved_at(instant)

    def resolved_at(self, instant: datetime) -> Trigger:
        """Return this trigger with its delay counted from ``instant``, if it has one."""
        if self.delay is None:
            return self
        at = self._from(utc(instant, field="instant"))
        if at is None:
            message = f"{self.delay} from {instant} on ends after the year 9999; choose a shorter"
            raise InvalidTriggerError(message, field="at")
        return Once(at)

    def phrase(self) -> str:
        """Say the instant, in UTC, or the delay."""
        if self.delay is None:
            return f"once at {self.at.replace(tzinfo=None)} UTC"
        if not self.delay:
            return "once, as soon as the schedule is stored"
        return f"once, {say_duration(self.delay)} after the schedule is stored"

    def _from(self, instant: datetime) -> datetime | None:
        """Return the fire time, counted from ``instant`` if there is none yet; None: too late."""
        try:
            return instant + self.delay if self.delay is not None else self._at
        except OverflowError:
            return None


def _checked(delay: object) -> timedelta:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        reason = "it must be a timedelta or a number of seconds"
    # Not a number compares as False.
    elif not seconds >= 0:
        reason = "it must be zero or positive"
    elif seconds > _LONGEST.total_seconds():
        reason = "it must not exceed 100 years"
    else:
        return delay if isinstance(delay, timedelta) else timedelta(seconds=seconds)
    message = f"the delay is {shorten(delay)}; {reason}, e.g. timedelta(minutes=5)"
    raise InvalidTriggerError(message, field="at")
