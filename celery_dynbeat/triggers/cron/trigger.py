"""Cron: fire times at matching wall times of a zone."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import EARLIEST, LATEST
from celery_dynbeat.triggers.base import Trigger, require_text, utc
from celery_dynbeat.triggers.cron.description import describe_cron
from celery_dynbeat.triggers.cron.expression import parse_expression, resolve_hashes
from celery_dynbeat.triggers.cron.instants import count_fire_times, next_fixed, next_wildcard
from celery_dynbeat.triggers.cron.wall_times import wall_times
from celery_dynbeat.triggers.zones import load_zone, zone_name

_DAY_AND = "day_and"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(Trigger):
    """Fire when the wall clock of ``timezone`` matches a cron expression.

    The expression has five fields (minute, hour, day of month, month, day of week), or six with
    seconds as the sixth. If neither day field begins with ``*``, one matching day field is enough,
    as in cron. With ``day_or=False``, both must match, as in Celery's ``crontab``. If a day field
    begins with ``*``, this makes no difference, and ``day_or`` is True. The default zone is UTC.

    Each ``H`` stands for values that the key of ``hashed_by(key)`` selects. The default key is "",
    and beat uses the owner and name of the schedule. ``bound_to(key)`` keeps the text of the
    expression. The trigger of a stored schedule is bound.

    Around a clock change, a fixed time (neither minute nor hour begins with ``*``) fires once. If
    the clock skips the time, it fires at the first instant after the gap. If the clock repeats the
    time, it fires at the first occurrence. Any other expression fires at each real instant whose
    wall clock matches: twice in the repeated hour, and not at all in the skipped hour.

    Raises ``InvalidTriggerError``. ``field`` names the invalid part: ``"minute"``, ``"hour"``,
    ``"day of month"``, ``"month"``, ``"day of week"``, ``"second"`` or ``"timezone"``.

    >>> weekdays = Cron("0 9 * * mon-fri", timezone="Asia/Seoul")
    >>> weekdays.describe()
    'At 09:00, Monday to Friday, Asia/Seoul'
    >>> str(weekdays.next_after(datetime(2026, 11, 21, tzinfo=UTC)))
    '2026-11-23 00:00:00+00:00'
    """

    kind: ClassVar[str] = "cron"
    counts_fast: ClassVar[bool] = True

    expression: str
    timezone: str | None = field(default=None)
    day_or: bool = field(default=True)
    #: The key of ``bound_to``, and the trigger without an ``H`` that finds its fire times.
    key: str | None = field(default=None, init=False)
    _resolved: "Cron | None" = field(default=None, init=False, compare=False)

    def __init__(
        self, expression: str, *, timezone: str | ZoneInfo | None = None, day_or: bool = True
    ) -> None:
        expression = require_text(
            expression, field=None, example="0 9 * * mon-fri", label="cron expression"
        )
        parsed = parse_expression(expression)
        # With a * in a day field both settings mean the same, so such triggers compare equal.
        day_or = bool(day_or) or parsed.day.starred or parsed.weekday.starred
        # Checks that there is a matching date.
        wall_times(parsed.text, day_or=day_or)
        timezone = None if timezone is None else zone_name(timezone)
        object.__setattr__(self, "expression", parsed.text)
        object.__setattr__(self, "timezone", timezone)
        object.__setattr__(self, "day_or", day_or)
        object.__setattr__(self, "key", None)
        object.__setattr__(self, "_resolved", None)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an expression, which the word ``day_and`` may follow."""
        words = spec.split()
        day_or = not (words and words[-1].lower() == _DAY_AND)
        expression = " ".join(words if day_or else words[:-1])
        return cls(expression, timezone=timezone, day_or=day_or)

    def __repr__(self) -> str:
        call = f"Cron(expression={self.expression!r}, timezone={self.timezone!r}, "
        call += f"day_or={self.day_or!r})"
        return call if self.key is None else f"{call}.bound_to({self.key!r})"

    @property
    def spec(self) -> str:
        """Return the expression, followed by the word ``day_and`` when ``day_or`` is False."""
        return self.expression if self.day_or else f"{self.expression} {_DAY_AND}"

    def to_text(self) -> str:
        """Return the expression with its zone as cronie, robfig/cron and Kubernetes write it.

        The values of an ``H`` are not in it, because they belong to a schedule.
        """
        return self.spec if self.timezone is None else f"CRON_TZ={self.timezone} {self.spec}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9900."""
        if self._resolved is not None:
            return self._resolved.next_after(instant)
        instant = max(utc(instant, field="instant"), EARLIEST)
        fire_time = _first_after(self, instant.replace(second=0, microsecond=0))
        if fire_time is None or fire_time > instant:
            return fire_time
        # The minute contains fire times because there is a seconds field, or an offset with
        # seconds.
        return _first_after(self, instant.replace(microsecond=0))

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        if self._resolved is not None:
            return self._resolved.count_until(after=after, until=until, limit=limit)
        after = max(utc(after, field="after"), EARLIEST)
        until = min(utc(until, field="until"), LATEST)
        if limit <= 0 or after >= until:
            return 0
        times = wall_times(self.expression, day_or=self.day_or)
        zone = load_zone(self.timezone or "UTC")
        return count_fire_times(times, zone, after=after, until=until, limit=limit)

    def phrase(self, timezone: str | None = None) -> str:  # noqa: ARG002 - it has no instant
        """Describe the expression and its zone."""
        words = describe_cron(parse_expression(self.expression), day_or=self.day_or)
        return f"{words}, {self.timezone or 'UTC'}"

    @property
    def needs_zone(self) -> bool:
        """Whether the trigger names no zone."""
        return self.timezone is None

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else replace(self, timezone=name)

    def hashed_by(self, key: str) -> "Cron":
        """Return this trigger with the values that ``key`` selects for each ``H``, else itself.

        The values never change and are equal on every machine.
        """
        parsed = parse_expression(self.expression)
        return replace(self, expression=resolve_hashes(key, parsed)) if parsed.hashed else self

    def bound_to(self, key: str) -> Trigger:
        """Return this trigger with the same text and the fire times of ``hashed_by(key)``.

        It compares equal to a trigger bound to the same key. Without an ``H`` it is this trigger.
        """
        resolved = self.hashed_by(key)
        if resolved is self:
            return self
        bound = replace(self)
        object.__setattr__(bound, "key", key)
        object.__setattr__(bound, "_resolved", resolved)
        return bound


@lru_cache(maxsize=8192)
def _first_after(trigger: Cron, instant: datetime) -> datetime | None:
    """Return the first fire time after ``instant``.

    Callers round ``instant`` down, so that equal triggers share a cache entry. A result is valid
    for the exact instant if it lies after it. Microseconds never matter to fire times.
    """
    if instant > LATEST:
        return None
    times = wall_times(trigger.expression, day_or=trigger.day_or)
    zone = load_zone(trigger.timezone or "UTC")
    search = next_wildcard if times.wildcard else next_fixed
    return search(times, zone, instant)
