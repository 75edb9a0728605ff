"""The interface of every trigger, and what the kinds share.

The cost of a search for fire times is limited, counted in steps. A step is one year, week or day
that a recurrence rule examines. It takes a little more than a microsecond. Unlike seconds, steps
are equal on every machine, so every machine refuses the same triggers. A cursor reads fire times in
order, and its searches take their steps from a budget.
"""

import difflib
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from itertools import islice, pairwise
from typing import Any, ClassVar, Self

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import as_text, shorten

_PACKAGE = "celery_dynbeat.triggers"
#: The class of each kind that this version can read. The package adds them.
CLASSES: dict[str, Any] = {}


def is_known(kind: str) -> bool:
    """Return whether this version has triggers of ``kind``. Case and outer spaces are ignored."""
    return kind.strip().lower() in CLASSES


def hash_of(seed: str) -> int:
    """Return the hash of ``seed``, from 0 to 2**64 - 1: equal on every machine, and for ever."""
    digest = hashlib.blake2b(seed.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)


#: The longest specs that are read, in characters.
MAX_SPEC_LENGTH = 255
MAX_RRULE_LENGTH = 4_000
#: Room for a year of dates and some triggers.
MAX_COMPOSITE_LENGTH = 8_000
#: No text of a trigger is longer. The JSON of a combination is longer than its text.
MAX_TEXT_LENGTH = 8_500
#: The longest interval and the longest delay: 100 years.
MAX_INTERVAL = timedelta(days=36525)


def utc(instant: object, *, field: str) -> datetime:
    """Return ``instant`` in UTC.

    Raises ``InvalidTriggerError`` for ``field`` when it is naive or no datetime.
    """
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


def require_text(value: object, *, field: str | None, example: str, label: str = "trigger") -> str:
    """Return ``value``, which must be a string, a lazy string of Django or a ZoneInfo, as text.

    Raises ``InvalidTriggerError`` for ``field``. The message names the field, or ``label`` when
    ``field`` is None.
    """
    if type(value) is str:
        return value
    text = as_text(value)
    if isinstance(text, str):
        return text
    message = f"{field or label} is {shorten(value)}; it must be text, such as {example!r}"
    raise InvalidTriggerError(message, field=field)


#: The steps to find one fire time of a ``Cron`` or an ``Every``: up to about 60 microseconds.
LOOKUP_STEPS = 50
#: The steps of one search in a combined trigger: about a tenth of a second.
SEARCH_STEPS = 1_800 * LOOKUP_STEPS
#: The steps of all searches that beat needs to plan a schedule once.
PLAN_STEPS = 2 * SEARCH_STEPS
#: The steps to prepare the recurrence rules of one trigger, COUNT included: about 25 milliseconds.
PREPARATION_STEPS = 20_000


class BudgetExceededError(Exception):
    """A search needs more steps than its budget has. Callers see ``InvalidTriggerError``."""


@dataclass(slots=True)
class SearchBudget:
    """The steps that some searches may take together, and the steps that they have taken."""

    limit: float = SEARCH_STEPS
    spent: int = 0

    def spend(self, steps: int) -> None:
        """Take ``steps``. Raises ``BudgetExceededError`` when fewer are left."""
        self.spent += steps
        if self.spent > self.limit:
            raise BudgetExceededError

    @property
    def remaining(self) -> float:
        """Return the steps that are left."""
        return self.limit - self.spent


def unlimited_budget() -> SearchBudget:
    """Return a budget without a limit, for an accepted trigger whose searches are bounded."""
    return SearchBudget(math.inf)


#: Earlier than any fire time.
MIN_INSTANT = datetime.min.replace(tzinfo=UTC)


class Cursor(ABC):
    """Finds the fire times of a trigger, for instants that never decrease.

    It remembers its last result, so no search runs twice.
    """

    _upcoming: datetime | None = MIN_INSTANT

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._search(instant)
        return self._upcoming

    @abstractmethod
    def _search(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, which is not known yet."""


class SingleCursor(Cursor):
    """A cursor over a trigger that is not made of other triggers."""

    def __init__(self, trigger: "Trigger", budget: SearchBudget) -> None:
        self._trigger, self._budget = trigger, budget

    def _search(self, instant: datetime) -> datetime | None:
        return self._trigger.next_within(instant, self._budget)


def iter_fire_times(cursor: Cursor, *, after: datetime) -> Iterator[datetime]:
    """Yield the fire times after ``after``. The iterator ends early if the budget is exceeded."""
    try:
        fire_time = cursor.next_after(after)
        while fire_time is not None:
            yield fire_time
            fire_time = cursor.next_after(fire_time)
    except BudgetExceededError:
        return


#: By name, a ``CalendarDays``. Its module imports this module.
Calendars = Mapping[str, Any]
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
        """Return the name of the zone whose wall clock the rule follows, or None for no zone."""
        return None

    @property
    @abstractmethod
    def spec(self) -> str:
        """Return the rule as the column ``trigger_spec`` has it. ``parse_trigger`` reads it back.

        It does not contain the zone of the trigger, which is in the column ``timezone``. A part of
        a combination that names no zone follows that column.
        """

    def to_text(self) -> str:
        """Return the rule with its zone on one line. ``from_text`` reads it back.

        >>> Cron("0 9 * * mon-fri", timezone="Asia/Seoul").to_text()
        'CRON_TZ=Asia/Seoul 0 9 * * mon-fri'
        """
        return self.spec if self.timezone is None else f"TZ={self.timezone} {self.spec}"

    def __str__(self) -> str:
        return self.to_text()

    @classmethod
    def from_text(cls, text: str, *, timezone: str | None = None) -> Self:
        """Return the trigger of a text such as ``0 9 * * mon-fri``, ``PT5M`` or ``@daily``.

        ``timezone`` is the zone of an instant without an offset. Without ``timezone``, such an
        instant is refused. It does not become the zone of any other rule.

        ``Trigger.from_text`` accepts triggers of any kind. ``Cron.from_text`` accepts only a
        ``Cron``. Raises ``InvalidTriggerError``.
        """
        module = import_module(f"{_PACKAGE}.text")
        return cls._checked_kind(module.trigger_from_text(text, timezone=timezone), text)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """Return the trigger for a dict from ``to_json``: ``kind``, ``spec`` and ``timezone``.

        Raises ``InvalidTriggerError``, also for a missing or unknown key.
        """
        return cls._checked_kind(trigger_from_json(data), data)

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
        """Return the first fire time strictly after ``instant``, or None if there is none.

        Raises ``InvalidTriggerError`` if ``instant`` is naive.
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

        Fewer are compared if finding them takes too many steps: those fire times are far apart.
        None when there are fewer than two.
        """
        budget = SearchBudget(SEARCH_STEPS * sample // SAMPLE)
        fire_times = iter_fire_times(self.cursor(budget), after=utc(after, field="after"))
        pairs = pairwise(islice(fire_times, sample))
        return min((later - earlier for earlier, later in pairs), default=None)

    @abstractmethod
    def phrase(self, timezone: str | None = None) -> str:
        """Describe the rule in words that fit into a sentence."""

    def describe(self, timezone: str | None = None) -> str:
        """Describe the rule in a sentence: ``At 09:00, Monday to Friday, Asia/Seoul``.

        Instants, as in a ``Once``, are shown in ``timezone``, or in UTC if it is omitted. A rule
        that follows a wall clock is described in its own zone.
        """
        phrase = self.phrase(timezone)
        return phrase[:1].upper() + phrase[1:]

    def excluding(
        self,
        *what: "date | Trigger",
        timezone: str | None = None,
        calendar: str | Iterable[str] = (),
    ) -> "Trigger":
        """Return this trigger without the fire times on the days of ``what`` and of calendars.

        ``what`` contains dates, and triggers that exclude each day on which they fire. ``calendar``
        is the name of a shared calendar, or several names. The days are in ``timezone``, or else in
        this trigger's zone, or else in UTC. Several exclusions in one zone are combined, but
        exclusions in different zones are refused. Raises ``InvalidTriggerError``, also if no fire
        time is left.
        """
        calendars = (calendar,) if isinstance(calendar, str) else calendar
        make = CLASSES["excluding"]
        trigger: Trigger = make(self, *what, timezone=timezone, calendars=calendars)
        return trigger.checked()

    def on_business_day(
        self, direction: str, *, calendar: str, timezone: str | None = None
    ) -> "Trigger":
        """Return this trigger with each fire time on a business day.

        A fire time on another day moves to the same wall time of the ``"next"`` or ``"previous"``
        business day. The days of ``calendar``, the name of a shared calendar, and its weekend are
        not business days. The days are in ``timezone``, or else in this trigger's zone, or else in
        UTC. Raises ``InvalidTriggerError``.
        """
        make = CLASSES["on_business_day"]
        trigger: Trigger = make(self, direction, calendar=calendar, timezone=timezone)
        return trigger.checked()

    @property
    def has_excluded_days(self) -> bool:
        """Whether ``excludes`` can return True. A trigger without its calendars' days has none."""
        return False

    def excludes(self, instant: datetime) -> bool:  # noqa: ARG002 - few exclude days
        """Return whether the rule excludes the day of ``instant``, so that it never fires on it."""
        return False

    @property
    def calendar_names(self) -> tuple[str, ...]:
        """Return the names of the calendars that the rule needs, in alphabetical order."""
        return ()

    def resolved(self, calendars: Calendars) -> "Trigger":  # noqa: ARG002 - few name calendars
        """Return this trigger with the days of its calendars.

        Without these days, a trigger that names calendars can be compared, described and stored,
        but a search for its fire times raises ``UnresolvedCalendarError``. Raises
        ``InvalidTriggerError`` if a calendar is missing.
        """
        return self

    def checked(self) -> "Trigger":
        """Return this trigger.

        Raises ``InvalidTriggerError`` if it combines other triggers and has no fire time.
        """
        return self

    @property
    def needs_zone(self) -> bool:
        """Whether a part of the rule follows a wall clock and names no zone."""
        return False

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON, which ``from_json`` can read: ``trigger.schema.json``."""
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
    """Return a fire time in ``(after, until]``, and an instant after which there are none.

    The search goes back from ``until`` in growing steps, because the newest fire time is usually
    near.
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


_KEYS = ("kind", "spec", "timezone")


def parse_trigger(kind: str, spec: str, *, timezone: str | None = None) -> Trigger:
    """Return the trigger of a database row: the inverse of ``kind``, ``spec`` and ``timezone``.

    Case and spaces may differ, because people also write rows manually. Only rules of the wall
    clock use ``timezone``.

    Raises ``InvalidTriggerError``, and no other error, for any text.
    """
    return _parse_whole(*_required(kind, spec, timezone))


def trigger_from_json(data: Mapping[str, object]) -> Trigger:
    """See ``Trigger.from_json``."""
    return _parse_whole(*_texts(data))


def _texts(data: object) -> tuple[str, str, str | None]:
    """Return kind, spec and timezone.

    Only text may reach the caches, because they need hashable keys.
    """
    if not isinstance(data, Mapping):
        rule = f"it must be an object with the keys {', '.join(_KEYS)}"
        raise InvalidTriggerError(f"trigger is {shorten(data)}; {rule}", field="trigger")
    for key in data:
        if key not in _KEYS:
            message = f"unknown key {shorten(key)} in trigger; known are {', '.join(_KEYS)}"
            field = key if isinstance(key, str) and len(key) <= MAX_SPEC_LENGTH else shorten(key)
            raise InvalidTriggerError(message, field=field)
    return _required(data.get("kind"), _spec_text(data.get("spec")), data.get("timezone"))


def _spec_text(spec: object) -> object:
    """Return the spec of a combination as the text of a row, any other value as it is."""
    if not isinstance(spec, list | dict):
        return spec
    try:
        return json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTriggerError(f"spec {shorten(spec)} is not JSON", field="spec") from error


def _required(kind: object, spec: object, timezone: object) -> tuple[str, str, str | None]:
    kind = require_text(kind, field="kind", example="cron")
    spec = require_text(spec, field="spec", example="0 9 * * mon-fri")
    if timezone is not None:
        timezone = require_text(timezone, field="timezone", example="Asia/Seoul")
    return kind, spec, timezone


@lru_cache(maxsize=8192)
def _parse_whole(kind: str, spec: str, timezone: str | None) -> Trigger:
    # Parts are not checked one by one, because all searches of the check share one budget.
    return parse_unchecked(kind, spec, timezone).checked()


def parse_part(data: Mapping[str, object]) -> Trigger:
    """Return a part of a combined trigger from its JSON, not checked for having fire times."""
    return parse_unchecked(*_texts(data))


@lru_cache(maxsize=8192)
def parse_unchecked(kind: str, spec: str, timezone: str | None) -> Trigger:
    """Return ``parse_trigger``, not checked for having fire times."""
    name = kind.strip().lower()
    if name not in CLASSES:
        near = difflib.get_close_matches(name[:40], CLASSES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(CLASSES)}"
        raise InvalidTriggerError(f"unknown kind of trigger {shorten(kind)}: {hint}", field="kind")
    trigger_class: type[Trigger] = CLASSES[name]
    most = trigger_class.max_spec_length
    if len(spec) > most:
        message = f"{shorten(spec)} has {len(spec)} characters; at most {most} are allowed"
        raise InvalidTriggerError(message, field="spec")
    return trigger_class.from_spec(spec, timezone)
