"""Cron: fire times at matching times of the wall clock of a zone."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar

from celery_dynbeat.triggers.base import Trigger, require_text, utc
from celery_dynbeat.triggers.cron.counts import count, wall_times
from celery_dynbeat.triggers.cron.fields import parse_fields, picked_by
from celery_dynbeat.triggers.cron.wall import next_fixed, next_wildcard, wall_rule
from celery_dynbeat.triggers.cron.words import describe_cron
from celery_dynbeat.triggers.zones import lookup

DAY_AND = "day_and"
# Far enough from the ends of datetime that no search can run over them.
_EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
_LATEST = datetime(9900, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron(Trigger):
    """Fire when the wall clock of ``timezone`` matches a cron expression.

    Five fields (minute, hour, day of month, month, day of week), or six with seconds as the sixth.
    When neither day field begins with ``*``, one that matches is enough, as in cron; with
    ``day_or=False`` both must match, as in Celery's ``crontab``; when one does, there is nothing to
    decide, and ``day_or`` is True. Without a zone: UTC.

    Each ``H`` stands for numbers that ``hashed_by(key)`` picks; until then for those of the key
    ``""``. Beat gives the owner and name of the schedule as the key. ``bound_to(key)`` keeps the
    expression; that is the trigger of a schedule that is read.

    Around a change of clocks a fixed time (neither minute nor hour begins with ``*``) fires once:
    at the first instant after the gap if the clock skips it, at its first occurrence if the clock
    repeats it. Any other expression follows elapsed time: it fires at each real instant whose wall
    clock matches, twice in the repeated hour, not at all in the skipped one.

    Raises ``InvalidTriggerError``; ``field`` names the part at fault: ``"minute"``, ``"hour"``,
    ``"day of month"``, ``"month"``, ``"day of week"``, ``"second"``, ``"timezone"``.
    """

    kind: ClassVar[str] = "cron"
    counts_fast: ClassVar[bool] = True

    expression: str
    timezone: str | None = field(default=None)
    day_or: bool = field(default=True)
    #: The key that this trigger is bound to, and the plain Cron that fires for it.
    key: str | None = field(default=None, init=False)
    _picked: "Cron | None" = field(default=None, init=False, compare=False)

    def __init__(
        self, expression: str, *, timezone: str | None = None, day_or: bool = True
    ) -> None:
        require_text(expression, field=None, example="0 9 * * mon-fri", said="cron expression")
        parsed = parse_fields(expression)
        # Where a * leaves the decision to the other day field, both settings are one rule.
        day_or = bool(day_or) or parsed.day.starred or parsed.weekday.starred
        wall_rule(parsed.text, day_or=day_or)
        if timezone is not None:
            lookup(require_text(timezone, field="timezone", example="Asia/Seoul"))
        object.__setattr__(self, "expression", parsed.text)
        object.__setattr__(self, "timezone", timezone)
        object.__setattr__(self, "day_or", day_or)
        object.__setattr__(self, "key", None)
        object.__setattr__(self, "_picked", None)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for an expression, which the word ``day_and`` may follow."""
        words = spec.split()
        day_or = not (words and words[-1].lower() == DAY_AND)
        expression = " ".join(words if day_or else words[:-1])
        return cls(expression, timezone=timezone, day_or=day_or)

    def __repr__(self) -> str:
        said = f"expression={self.expression!r}, timezone={self.timezone!r}, day_or={self.day_or!r}"
        return f"Cron({said})" if self.key is None else f"Cron({said}).bound_to({self.key!r})"

    @property
    def spec(self) -> str:
        """Return the expression, followed by the word ``day_and`` when ``day_or`` is False."""
        return self.expression if self.day_or else f"{self.expression} {DAY_AND}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9900."""
        if self._picked is not None:
            return self._picked.next_after(instant)
        instant = max(utc(instant, field="instant"), _EARLIEST)
        fire_time = _first_after(self, instant.replace(second=0, microsecond=0))
        if fire_time is None or fire_time > instant:
            return fire_time
        # The minute has fire times inside it: a seconds field, or an offset of odd seconds.
        return _first_after(self, instant.replace(microsecond=0))

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        if self._picked is not None:
            return self._picked.count_until(after=after, until=until, limit=limit)
        after = max(utc(after, field="after"), _EARLIEST)
        until = min(utc(until, field="until"), _LATEST)
        if limit <= 0 or after >= until:
            return 0
        times = wall_times(self.expression, day_or=self.day_or)
        zone = lookup(self.timezone or "UTC")
        return count(times, zone, after=after, until=until, limit=limit)

    def phrase(self) -> str:
        """Say the expression and its zone in words."""
        words = describe_cron(parse_fields(self.expression), day_or=self.day_or)
        return f"{words}, {self.timezone or 'UTC'}"

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else replace(self, timezone=name)

    def hashed_by(self, key: str) -> "Cron":
        """Return this trigger with the numbers that ``key`` picks for each ``H``, else itself.

        They are the same for ever and on every machine.
        """
        fields = parse_fields(self.expression)
        return replace(self, expression=picked_by(key, fields)) if fields.hashed else self

    def bound_to(self, key: str) -> Trigger:
        """Return this trigger, with the same text, firing as ``hashed_by(key)`` does.

        It is equal to those that are bound to the same key, and itself without an ``H``.
        """
        picked = self.hashed_by(key)
        if picked is self:
            return self
        bound = replace(self)
        object.__setattr__(bound, "key", key)
        object.__setattr__(bound, "_picked", picked)
        return bound


@lru_cache(maxsize=8192)
def _first_after(trigger: Cron, instant: datetime) -> datetime | None:
    """Evaluate. Callers round ``instant`` down, so that equal rules share one evaluation.

    To the minute is right as long as the answer lies past the instant itself; to the second always,
    because fire times fall on whole seconds.
    """
    if instant > _LATEST:
        return None
    rule = wall_rule(trigger.expression, day_or=trigger.day_or)
    zone = lookup(trigger.timezone or "UTC")
    search = next_wildcard if rule.wildcard else next_fixed
    return search(rule, zone, instant)
