"""Once: one fire time."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Self

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import LAST_YEAR, LATEST, describe_duration, shorten
from celery_dynbeat.triggers.base import MAX_INTERVAL, SAMPLE, Trigger, utc
from celery_dynbeat.triggers.iso8601 import (
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from celery_dynbeat.triggers.zones import describe_instant


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Once(Trigger):
    """Fire once, at the aware instant ``at``.

    ``Once.after(delay)`` has no instant at first. When a schedule is stored, it gets an instant:
    the time of the database's clock plus the delay. Until then, ``delay`` is set, and the fire time
    counts from the argument of each search. For any other ``Once``, ``delay`` is None.

    Raises ``InvalidTriggerError`` with field ``"at"`` if the instant is naive, or is after the last
    year of fire times.

    >>> Once(datetime(2026, 12, 24, 18, tzinfo=UTC)).describe("Asia/Seoul")
    'Once at 2026-12-25 03:00 (Asia/Seoul)'
    >>> Once.after(timedelta(hours=40)).describe()
    'Once, 40 hours after the schedule is stored'
    """

    kind: ClassVar[str] = "once"
    counts_fast: ClassVar[bool] = True

    _at: datetime | None = field(init=False)
    delay: timedelta | None = field(init=False)

    def __init__(self, at: datetime) -> None:
        instant = utc(at, field="at")
        if instant >= LATEST:
            message = f"{instant} lies past the year {LAST_YEAR}, the last one of fire times"
            raise InvalidTriggerError(message, field="at")
        object.__setattr__(self, "_at", instant)
        object.__setattr__(self, "delay", None)

    @classmethod
    def after(cls, delay: timedelta | float) -> Self:
        """Return a trigger that fires ``delay`` (a timedelta or seconds) after it is stored.

        Raises ``InvalidTriggerError`` with field ``"at"``.
        """
        pending = object.__new__(cls)
        object.__setattr__(pending, "_at", None)
        object.__setattr__(pending, "delay", _valid_delay(delay))
        return pending

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an instant, or for a delay such as ``PT40H``."""
        del timezone
        if not spec.lstrip().upper().startswith("P"):
            return cls(parse_instant(spec, field="at"))
        return cls.after(parse_delay(spec))

    def __repr__(self) -> str:
        return f"Once({self._at!r})" if self.delay is None else f"Once.after({self.delay!r})"

    @property
    def at(self) -> datetime:
        """Return the instant, in UTC.

        Raises ``InvalidTriggerError`` for a ``Once.after(delay)``, which has none yet.
        """
        if self._at is None:
            message = (
                f"{self!r} has no instant until a schedule with it is stored: read the trigger"
                " that create() returns, or call resolved_at(datetime.now(UTC))"
            )
            raise InvalidTriggerError(message, field="at")
        return self._at

    @property
    def spec(self) -> str:
        """Return the instant in ISO 8601 and UTC, or the delay while there is one: ``PT40H``."""
        return format_instant(self.at) if self.delay is None else format_duration(self.delay)

    def to_text(self) -> str:
        """Return the instant, or the delay as ``in PT40H``."""
        return self.spec if self.delay is None else f"in {self.spec}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the fire time if it lies after ``instant``."""
        at = self._from(utc(instant, field="instant"))
        return at if at is not None and at > instant else None

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the fire time if it lies in ``(after, until]``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        at = self._from(after)
        return at if at is not None and after < at <= until else None

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Return 1 if the fire time lies in ``(after, until]``, else 0."""
        return 0 if self.latest_until(after=after, until=until) is None else min(max(limit, 0), 1)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return None, because there are no two fire times."""
        del after, sample
        return None

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return the trigger at ``instant`` plus the delay, itself without a delay."""
        return self.resolved_at(instant)

    def resolved_at(self, instant: datetime) -> Trigger:
        """Return the trigger at ``instant`` plus the delay, itself without a delay."""
        if self.delay is None:
            return self
        at = self._from(utc(instant, field="instant"))
        if at is None:
            message = (
                f"{self.delay} after {instant} lies past the year 9999; choose a shorter delay"
            )
            raise InvalidTriggerError(message, field="at")
        return Once(at)

    def phrase(self, timezone: str | None = None) -> str:
        """Describe the instant, in ``timezone`` or UTC, or the delay."""
        if self.delay is None:
            return f"once at {describe_instant(self.at, timezone)}"
        if not self.delay:
            return "once, as soon as the schedule is stored"
        return f"once, {describe_duration(self.delay)} after the schedule is stored"

    def _from(self, instant: datetime) -> datetime | None:
        """Return the fire time, or ``instant`` plus the delay if there is a delay.

        None past year 9999.
        """
        try:
            return instant + self.delay if self.delay is not None else self._at
        except OverflowError:
            return None


def parse_delay(text: str) -> timedelta:
    """Return the delay of ``PT40H`` or ``40h``. Raises ``InvalidTriggerError``."""
    delay = parse_duration(text)
    if isinstance(delay, timedelta):
        return delay
    message = f"{shorten(text)} is calendar time; a delay is elapsed time, such as PT24H"
    raise InvalidTriggerError(message, field="at")


def _valid_delay(delay: object) -> timedelta:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        reason = "it must be a timedelta or a number of seconds"
    # Written so that NaN, which compares as False, is refused.
    elif not seconds >= 0:
        reason = "it must be zero or positive"
    elif seconds > MAX_INTERVAL.total_seconds():
        reason = "it must not exceed 100 years"
    else:
        return delay if isinstance(delay, timedelta) else timedelta(seconds=seconds)
    message = f"the delay is {shorten(delay)}; {reason}, e.g. timedelta(minutes=5)"
    raise InvalidTriggerError(message, field="at")
