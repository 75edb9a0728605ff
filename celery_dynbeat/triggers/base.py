"""What every trigger can do: the interface, and the parts that follow from ``next_after`` alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.budget import LOOKUP, Budget
from celery_dynbeat.triggers.kinds import load_class
from celery_dynbeat.triggers.limits import MAX_SPEC
from celery_dynbeat.triggers.search_budget import LeafWalk, Walk

_Next = Callable[[datetime], datetime | None]
#: How many of the next fire times tell how densely a trigger fires.
SAMPLE = 200
#: A look back from the end of a span takes as long as so many ahead.
LOOKS_BACK = 4


class Trigger(ABC):
    """A rule that yields fire times. Triggers are values: immutable, equal by content, hashable.

    Instants are aware; those that come back are in UTC, and strictly increase.
    """

    __slots__ = ()

    kind: ClassVar[str]
    max_spec_length: ClassVar[int] = MAX_SPEC
    #: Whether counting costs little however many fire times there are.
    counts_fast: ClassVar[bool] = False
    #: Whether one question may take thousands of steps, so that beat counts them.
    metered: ClassVar[bool] = False

    @property
    def timezone(self) -> str | None:
        """Name the zone in whose wall clock the rule is written, or None if it has none."""
        return None

    @property
    @abstractmethod
    def spec(self) -> str:
        """Return the rule as text, without its zone: what ``parse_trigger`` reads back."""

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> "Trigger":
        """Return the trigger of this kind that ``spec`` stands for, the inverse of ``spec``.

        ``timezone`` is ignored by rules without a wall clock. Raises ``InvalidTriggerError``.
        """
        raise NotImplementedError

    @abstractmethod
    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, or None when there is none.

        Raises ``InvalidTriggerError`` when ``instant`` is naive.
        """

    def next_within(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return ``next_after(instant)``, paid for from ``budget``; may raise ``SpentError``."""
        budget.spend(LOOKUP)
        return self.next_after(instant)

    def walk(self, budget: Budget) -> Walk:
        """Return its fire times in order, each paid for from ``budget``."""
        return LeafWalk(self, budget)

    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return ``latest_until``, paid for from ``budget``; may raise ``SpentError``."""
        budget.spend(LOOKS_BACK * LOOKUP)
        return self.latest_until(after=after, until=until)

    @property
    def affords_more(self) -> bool:
        """Whether there are steps left for more than has to be asked."""
        return True

    @property
    def preparation(self) -> int:
        """Return the steps that it takes to prepare the rule, before the first question."""
        return 0

    @abstractmethod
    def phrase(self) -> str:
        """Say the rule in words that can stand within a sentence."""

    def describe(self) -> str:
        """Say the rule as a sentence: ``At 09:00, Monday to Friday, Asia/Seoul``."""
        phrase = self.phrase()
        return phrase[:1].upper() + phrase[1:]

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none.

        Without a way of its own a trigger takes calls to ``next_after``, whose number grows with
        the logarithm of the span.
        """
        after, until = utc(after, field="after"), utc(until, field="until")
        return latest_by(self.next_after, after=after, until=until)

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        until = utc(until, field="until")
        count, fire_time = 0, self.next_after(after)
        while count < limit and fire_time is not None and fire_time <= until:
            count += 1
            fire_time = self.next_after(fire_time)
        return count

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest distance between two of the next ``sample`` fire times.

        None when there are fewer than two of them.
        """
        shortest, earlier = None, self.next_after(after)
        for _ in range(sample - 1):
            later = None if earlier is None else self.next_after(earlier)
            if earlier is None or later is None:
                break
            distance, earlier = later - earlier, later
            shortest = distance if shortest is None else min(shortest, distance)
        return shortest

    def excluding(self, *what: "date | Trigger", timezone: str | None = None) -> "Trigger":
        """Return this trigger without the fire times that fall on the days of ``what``.

        Dates, and triggers for each day on which they fire. The days are those of ``timezone``,
        without one of this trigger's own zone, without that of UTC. Exclusions of one zone add up,
        those of another are refused. Raises ``InvalidTriggerError``, also when nothing is left.
        """
        # By its kind: the class is itself a Trigger, so its module imports this one.
        trigger: Trigger = load_class("excluding")(self, *what, timezone=timezone)
        return trigger.checked()

    def checked(self) -> "Trigger":
        """Return this trigger.

        Raises ``InvalidTriggerError`` if it combines others and has no fire time.
        """
        return self

    def to_json(self) -> dict[str, str | None]:
        """Return what JSON can carry; ``trigger_from_json`` reads it back."""
        return {"kind": self.kind, "spec": self.spec, "timezone": self.timezone}

    def in_zone(self, name: str) -> "Trigger":  # noqa: ARG002 - only wall clocks have zones
        """Return this trigger in the zone ``name``, if its rule needs a zone and has none."""
        return self

    def anchored_at(self, instant: datetime) -> "Trigger":  # noqa: ARG002 - few need an anchor
        """Return this trigger counting from ``instant``, if its rule needs an anchor."""
        return self

    def hashed_by(self, key: str) -> "Trigger":  # noqa: ARG002 - only Cron has an H
        """Return this trigger with the values that ``key`` picks for each ``H`` in its rule."""
        return self

    def bound_to(self, key: str) -> "Trigger":  # noqa: ARG002
        """Return this trigger, with the same text, firing as ``hashed_by(key)`` does."""
        return self

    def resolved_at(self, instant: datetime) -> "Trigger":  # noqa: ARG002 - only Once has a delay
        """Return what a schedule holds that is stored at ``instant``: no ``Once.after`` in it."""
        return self


def utc(instant: object, *, field: str) -> datetime:
    """Return ``instant`` in UTC; raise ``InvalidTriggerError`` for ``field`` when it is naive."""
    if not isinstance(instant, datetime):
        message = f"{field} is {shorten(instant)}; it must be an aware datetime"
        raise InvalidTriggerError(message, field=field)
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        message = f"{field} {instant} has no zone; make it aware, e.g. with tzinfo=datetime.UTC"
        raise InvalidTriggerError(message, field=field)
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        message = f"{field} {instant} lies outside the years 1 to 9999 in UTC; choose another"
        raise InvalidTriggerError(message, field=field) from error


def require_text(value: object, *, field: str | None, example: str, said: str = "trigger") -> str:
    """Return ``value`` if it is a string; raise ``InvalidTriggerError`` for ``field`` if not.

    Without a field the message calls the value ``said``.
    """
    if isinstance(value, str):
        return value
    message = f"{field or said} is {shorten(value)}; it must be text, such as {example!r}"
    raise InvalidTriggerError(message, field=field)


def latest_by(next_after: _Next, *, after: datetime, until: datetime) -> datetime | None:
    """Return the newest fire time in ``(after, until]`` by calls of ``next_after``."""
    window = _newest_window(next_after, after=after, until=until)
    if window is None:
        return None
    latest, barren_from = window
    # (barren_from, until] holds no fire time; [latest, barren_from] shrinks by half.
    while _at_most(next_after(latest), until) is not None:
        middle = latest + (barren_from - latest) / 2
        later = _at_most(next_after(middle), until)
        if later is None:
            barren_from = middle
        else:
            latest = later
    return latest


def _newest_window(
    next_after: _Next, *, after: datetime, until: datetime
) -> tuple[datetime, datetime] | None:
    """Return a fire time in ``(after, until]`` and an instant after which there are no more.

    Looks back from ``until`` in steps that grow, because the newest fire time is mostly near.
    """
    step, barren_from = timedelta(seconds=1), until
    while after < barren_from:
        start = until - step if until - after > step else after
        fire_time = _at_most(next_after(start), until)
        if fire_time is not None:
            return fire_time, barren_from
        barren_from, step = start, step * 8
    return None


def _at_most(fire_time: datetime | None, until: datetime) -> datetime | None:
    return fire_time if fire_time is not None and fire_time <= until else None
