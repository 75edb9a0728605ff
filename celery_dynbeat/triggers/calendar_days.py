"""The days of a shared calendar, as triggers need them.

A trigger stores the name of a calendar. ``Trigger.resolved`` gives it the days.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten

#: Saturday and Sunday, as ``date.weekday`` numbers them.
WEEKEND = frozenset({5, 6})
#: The days of the week as calendars name them, from Monday on.
WEEKDAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAME = re.compile(r"[a-z0-9._-]{1,100}", re.ASCII)


def check_name(name: object) -> str:
    """Return ``name``, the name of a calendar. Raises ``InvalidTriggerError``."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    rule = "must be 1 to 100 of the characters a-z, 0-9, '.', '_' and '-', such as 'holidays-de'"
    raise InvalidTriggerError(f"calendar {shorten(name)}: the name {rule}", field="calendar")


def written_name(name: str) -> str:
    """Return the name in the text of a trigger: in quotes if it is a word of the text."""
    return f'"{name}"' if name in {"or", "except"} else name


@dataclass(frozen=True, slots=True, eq=False)
class CalendarDays:
    """The days of one version of a calendar.

    ``weekend`` contains the days of the week that are not business days, where Monday is 0. Only
    ``on_business_day`` uses it. ``notes`` has the notes of the dates that have one. ``id`` and
    ``version`` identify the stored calendar.

    Two objects with the same content are equal. The hash needs only the name and the version,
    because there can be thousands of dates.
    """

    name: str
    dates: frozenset[date] = frozenset()
    weekend: frozenset[int] = WEEKEND
    notes: Mapping[date, str] = field(default_factory=dict)
    version: int = 0
    id: int = 0

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, CalendarDays):
            return NotImplemented
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash((self.name, self.version))

    def __repr__(self) -> str:
        return f"<CalendarDays {self.name!r}, version {self.version}>"

    def _content(self) -> tuple[object, ...]:
        return self.name, self.version, self.id, self.weekend, self.dates, self.notes


def days_of(calendars: Mapping[str, CalendarDays], name: str) -> CalendarDays:
    """Return the days of the calendar ``name``. Raises ``InvalidTriggerError`` if it is missing."""
    days = calendars.get(name)
    if days is None:
        rule = "there is no calendar with this name; create it with dynbeat.calendars.upsert()"
        raise InvalidTriggerError(f"calendar {name!r}: {rule}", field="calendar")
    return days


def empty_calendars(names: Iterable[str]) -> Mapping[str, CalendarDays]:
    """Return calendars with these names and without days, which exclude and move no fire time."""
    return {name: CalendarDays(name, weekend=frozenset()) for name in names}


def weekend_text(weekend: Collection[int]) -> str:
    """Return ``sat,sun`` for 5 and 6."""
    return ",".join(WEEKDAY_NAMES[number] for number in sorted(weekend))


def read_weekend(text: str) -> frozenset[int]:
    """Return the numbers of the days in ``text``, such as ``sat,sun``. Raises ``ValueError``."""
    return frozenset(WEEKDAY_NAMES.index(name.strip()) for name in text.split(",") if name.strip())
