"""The interface of every trigger, and the methods that follow from ``next_after`` alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import ClassVar, Self

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cursors import Cursor, SingleCursor
from celery_dynbeat.triggers.kinds import load_class, load_parser
from celery_dynbeat.triggers.limits import MAX_SPEC_LENGTH
from celery_dynbeat.triggers.search_budget import LOOKUP_STEPS, SearchBudget
from celery_dynbeat.triggers.validation import utc

#: The number of fire times that ``shortest_interval`` compares.
SAMPLE = 200
#: ``latest_until`` costs as much as this number of ``next_after`` calls.
LATEST_LOOKUPS = 4
_Next = Callable[[datetime], datetime | None]


class Trigger(ABC):
    """A rule that yields fire times. Triggers are values: immutable, equal by content, hashable.

    Instants are aware. Returned instants are in UTC and strictly increase.
    """

    __slots__ = ()

    kind: ClassVar[str]
    max_spec_length: ClassVar[int] = MAX_SPEC_LENGTH
    #: Whether the cost of ``count_until`` does not depend on the number of fire times.
    counts_fast: ClassVar[bool] = False
    #: Whether one search may take thousands of steps, so that a plan must limit them.
    needs_budget: ClassVar[bool] = False

    @property
    def timezone(self) -> str | None:
        """Return the name of the zone whose wall clock the rule follows, None without one."""
        return None

    @property
    @abstractmethod
    def spec(self) -> str:
        """Return the rule as text without its zone. ``parse_trigger`` reads it back."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the trigger for a text. The first characters of the text select the kind.

        The text is a cron expression (``0 9 * * mon-fri``, ``@daily``), an ISO 8601 duration
        (``PT5M``, ``P1D``, ``R/2026-01-31T09:00:00Z/P1M``), an instant (``2026-11-21T09:00:00Z``),
        or the lines of a recurrence rule (``FREQ=WEEKLY;BYDAY=MO``).

        ``Trigger.from_text`` returns a trigger of any kind, ``Cron.from_text`` only a ``Cron``.
        Raises ``InvalidTriggerError``.
        """
        return cls._checked_kind(load_parser("text")(text), text)

    @classmethod
    def from_words(
        cls, text: str, *, timezone: str | None = None, date_timezone: str | None = None
    ) -> Self:
        """Return the trigger for English words, such as ``weekdays at 9`` or ``in 40 hours``.

        It also reads each text that ``from_text`` reads. Hours without am and pm are those of the
        24-hour clock. The words can end with their own zone: ``daily at 9, Asia/Seoul``.

        Rules of the wall clock are in ``timezone``. None leaves them without a zone, so that they
        follow the zone of their owner. A date is an instant, so it needs a zone: ``on 2026-12-24
        at 18:00`` is in ``timezone``, else in ``date_timezone``.

        Raises ``InvalidTriggerError`` with field ``"trigger"``, with field ``"timezone"`` for an
        unknown or missing zone, or with the fields of ``from_text``.
        """
        parse = load_parser("words")
        return cls._checked_kind(parse(text, timezone=timezone, date_timezone=date_timezone), text)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """Return the trigger that ``to_json`` wrote: keys ``kind``, ``spec``, ``timezone``.

        Raises ``InvalidTriggerError``, also for a missing or unknown key.
        """
        return cls._checked_kind(load_parser("json")(data), data)

    @classmethod
    def _checked_kind(cls, trigger: "Trigger", given: object) -> Self:
        if isinstance(trigger, cls):
            return trigger
        message = f"{shorten(given)} is a trigger of kind {trigger.kind!r}, not {cls.__name__}"
        raise InvalidTriggerError(message, field="trigger")

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> "Trigger":
        """Return the trigger of this kind with this ``spec`` and ``timezone``.

        A rule without a wall clock ignores ``timezone``. Raises ``InvalidTriggerError``.
        """
        raise NotImplementedError

    @abstractmethod
    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, or None when there is none.

        Raises ``InvalidTriggerError`` when ``instant`` is naive.
        """

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return ``next_after(instant)``. Take its steps from ``budget``.

        Raises ``BudgetExceededError``.
        """
        budget.spend(LOOKUP_STEPS)
        return self.next_after(instant)

    def cursor(self, budget: SearchBudget) -> Cursor:
        """Return a cursor over the fire times, which takes its steps from ``budget``."""
        return SingleCursor(self, budget)

    def latest_until(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the newest fire time in ``(after, until]``, or None when there is none."""
        after, until = utc(after, field="after"), utc(until, field="until")
        return latest_by(self.next_after, after=after, until=until)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return ``latest_until``. Take its steps from ``budget``.

        Raises ``BudgetExceededError``.
        """
        budget.spend(LATEST_LOOKUPS * LOOKUP_STEPS)
        return self.latest_until(after=after, until=until)

    @property
    def has_spare_budget(self) -> bool:
        """Whether the caller may start searches that a plan can do without."""
        return True

    @property
    def preparation_steps(self) -> int:
        """Return the steps to prepare the rule before its first search."""
        return 0

    def count_until(self, *, after: datetime, until: datetime, limit: int) -> int:
        """Count the fire times in ``(after, until]``, at most up to ``limit``."""
        until = utc(until, field="until")
        count, fire_time = 0, self.next_after(after)
        while count < limit and fire_time is not None and fire_time <= until:
            count += 1
            fire_time = self.next_after(fire_time)
        return count

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest interval between two of the next ``sample`` fire times.

        None when there are fewer than two.
        """
        shortest, earlier = None, self.next_after(after)
        for _ in range(sample - 1):
            later = None if earlier is None else self.next_after(earlier)
            if earlier is None or later is None:
                break
            interval, earlier = later - earlier, later
            shortest = interval if shortest is None else min(shortest, interval)
        return shortest

    @abstractmethod
    def phrase(self, timezone: str | None = None) -> str:
        """Describe the rule in words that fit into a sentence, as ``describe`` does."""

    def describe(self, timezone: str | None = None) -> str:
        """Describe the rule as a sentence: ``At 09:00, Monday to Friday, Asia/Seoul``.

        Instants, as in a ``Once``, are shown in ``timezone``, by default in UTC. A rule
        that follows a wall clock is described in its own zone.
        """
        phrase = self.phrase(timezone)
        return phrase[:1].upper() + phrase[1:]

    def excluding(self, *what: "date | Trigger", timezone: str | None = None) -> "Trigger":
        """Return this trigger without the fire times on the days of ``what``.

        ``what`` is dates, and triggers that exclude each day on which they fire. The days are days
        of ``timezone``, by default of this trigger's zone, else of UTC. Several exclusions in one
        zone are combined; exclusions in different zones are refused. Raises
        ``InvalidTriggerError``, also when no fire time is left.
        """
        # By its kind: the class is itself a Trigger, so its module imports this one.
        trigger: Trigger = load_class("excluding")(self, *what, timezone=timezone)
        return trigger.checked()

    def checked(self) -> "Trigger":
        """Return this trigger.

        Raises ``InvalidTriggerError`` if it combines other triggers and has no fire time.
        """
        return self

    @property
    def needs_zone(self) -> bool:
        """Whether a part of the rule follows a wall clock and names no zone."""
        return False

    @property
    def row_spec(self) -> str:
        """Return ``spec`` for a row whose zone counts for the parts with ``needs_zone``."""
        return self.spec

    def to_json(self) -> dict[str, str | None]:
        """Return a dict for JSON. ``from_json`` reads it back."""
        return {"kind": self.kind, "spec": self.spec, "timezone": self.timezone}

    def in_zone(self, name: str) -> "Trigger":  # noqa: ARG002 - only wall clocks have zones
        """Return this trigger in the zone ``name``, if its rule needs a zone and has none."""
        return self

    def anchored_at(self, instant: datetime) -> "Trigger":  # noqa: ARG002 - few need an anchor
        """Return this trigger counting from ``instant``, if its rule needs an anchor."""
        return self

    def hashed_by(self, key: str) -> "Trigger":  # noqa: ARG002 - only Cron has an H
        """Return this trigger with each ``H`` replaced by the values that ``key`` selects."""
        return self

    def bound_to(self, key: str) -> "Trigger":  # noqa: ARG002
        """Return this trigger with the same text and the fire times of ``hashed_by(key)``."""
        return self

    def resolved_at(self, instant: datetime) -> "Trigger":  # noqa: ARG002 - only Once has a delay
        """Return the trigger to store at ``instant``: it contains no ``Once.after``."""
        return self


def latest_by(next_after: _Next, *, after: datetime, until: datetime) -> datetime | None:
    """Return the newest fire time in ``(after, until]``, or None when there is none.

    The number of calls of ``next_after`` grows with the logarithm of the span.
    """
    window = _newest_window(next_after, after=after, until=until)
    if window is None:
        return None
    latest, empty_from = window
    # (empty_from, until] holds no fire time. Each round halves [latest, empty_from].
    while _at_most(next_after(latest), until) is not None:
        middle = latest + (empty_from - latest) / 2
        later = _at_most(next_after(middle), until)
        if later is None:
            empty_from = middle
        else:
            latest = later
    return latest


def _newest_window(
    next_after: _Next, *, after: datetime, until: datetime
) -> tuple[datetime, datetime] | None:
    """Return a fire time in ``(after, until]``, and an instant after which there are no more.

    The search looks back from ``until`` in growing steps: the newest fire time is usually near.
    """
    step, empty_from = timedelta(seconds=1), until
    while after < empty_from:
        start = until - step if until - after > step else after
        fire_time = _at_most(next_after(start), until)
        if fire_time is not None:
            return fire_time, empty_from
        empty_from, step = start, step * 8
    return None


def _at_most(fire_time: datetime | None, until: datetime) -> datetime | None:
    return fire_time if fire_time is not None and fire_time <= until else None
