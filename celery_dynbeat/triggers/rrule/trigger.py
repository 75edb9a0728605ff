"""RRule: fire times by a recurrence rule of RFC 5545, as calendars use it."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import EARLIEST, FIRST_YEAR, LAST_YEAR
from celery_dynbeat.triggers.base import (
    LOOKUP_STEPS,
    MAX_RRULE_LENGTH,
    SearchBudget,
    Trigger,
    latest_by,
    require_text,
    unlimited_budget,
    utc,
)
from celery_dynbeat.triggers.rrule.description import describe_recurrence
from celery_dynbeat.triggers.rrule.prepared import normal_form, preparation_steps, prepare
from celery_dynbeat.triggers.rrule.text import anchored, format_moment, invalid_part
from celery_dynbeat.triggers.zones import zone_name

#: The number of rules that can be searched in the time of one lookup.
_RULES_PER_LOOKUP = 3
_EXAMPLE = "DTSTART;TZID=Europe/Berlin:20260105T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO"


@dataclass(frozen=True, slots=True, init=False)
class RRule(Trigger):
    """Fire by a recurrence rule of RFC 5545: ``DTSTART``, ``RRULE``, ``RDATE``, ``EXDATE``.

    The fire times of several rules and dates are combined, and ``EXDATE`` removes fire times. A
    single ``FREQ=...`` is also a rule. The zone is the ``TZID`` of DTSTART, or UTC if DTSTART ends
    with Z, or else ``timezone``, or else UTC. The matching days are the same as in python-dateutil,
    so DTSTART fires only if the rule matches it.

    Without DTSTART, the rule counts from its anchor (``anchored_at``), or from the argument of each
    search. The anchor provides the day and the time of day if the rule has none.

    The wall-clock time stays the same when clocks change. A skipped time is read with the offset
    before the gap (02:30 fires at 03:30). A repeated time fires at its first occurrence.

    Limits: 4,000 characters, 20 rules, 1,440 times of day, ``COUNT=1000``, ``INTERVAL=1000000``,
    years 1900 to 9899, and 20,000 steps for counting through its rules.

    Raises ``InvalidTriggerError``. ``field`` names the invalid part: ``"dtstart"``, ``"freq"``,
    ``"byday"``, ``"until"``, ``"exdate"``, ``"timezone"`` or ``"anchor"``, or ``"rrule"`` for the
    whole rule.

    >>> last_friday = RRule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0", timezone="Asia/Seoul")
    >>> last_friday.describe()
    'On the last Friday of every month at 09:00, Asia/Seoul'
    >>> str(last_friday.next_after(datetime(2026, 11, 21, tzinfo=UTC)))
    '2026-11-27 00:00:00+00:00'
    """

    kind: ClassVar[str] = "rrule"
    max_spec_length: ClassVar[int] = MAX_RRULE_LENGTH
    needs_budget: ClassVar[bool] = True

    text: str
    timezone: str | None = field(default=None)

    def __init__(self, text: str, *, timezone: str | ZoneInfo | None = None) -> None:
        text = require_text(text, field="rrule", example=_EXAMPLE)
        timezone = None if timezone is None else zone_name(timezone)
        normal, zone = normal_form(text, timezone)
        prepare(normal, zone).check()
        object.__setattr__(self, "text", normal)
        object.__setattr__(self, "timezone", zone)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for recurrence text."""
        return cls(spec, timezone=timezone)

    @property
    def spec(self) -> str:
        """Return the text in its normal form: upper case, DTSTART first, with its zone."""
        return self.text

    def to_text(self) -> str:
        """Return the lines with blanks between them. A zone without DTSTART comes first."""
        text = " ".join(self.text.split("\n"))
        names_zone = self.timezone is None or text.startswith("DTSTART")
        return text if names_zone else f"TZ={self.timezone} {text}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9899."""
        return self.next_within(instant, unlimited_budget())

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return ``next_after(instant)``. Take its steps from ``budget``."""
        instant = max(utc(instant, field="instant"), EARLIEST)
        if instant.year > LAST_YEAR:
            return None
        prepared = prepare(self.text, self.timezone)
        budget.spend(LOOKUP_STEPS * (1 + len(prepared.recurrence.rules) // _RULES_PER_LOOKUP))
        if prepared.recurrence.dtstart is None:
            dtstart = anchored(prepared.recurrence, instant).dtstart
            prepared = prepare(self.text, self.timezone, dtstart)
        # Fire times fall on whole seconds.
        return prepared.next_after(instant.replace(microsecond=0), budget)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return ``latest_until``. Each search takes its steps from ``budget``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        next_after = partial(self.next_within, budget=budget)
        return latest_by(next_after, after=after, until=until)

    @property
    def preparation_steps(self) -> int:
        """Return the steps to count its rules through and to prepare each of them."""
        return preparation_steps(self.text, self.timezone)

    def phrase(self, timezone: str | None = None) -> str:  # noqa: ARG002 - it has no instant
        """Describe the rule in words, or as it is written if there are no words for it."""
        return describe_recurrence(prepare(self.text, self.timezone).recurrence)

    @property
    def needs_zone(self) -> bool:
        """Whether it names no zone."""
        return self.timezone is None

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else RRule(self.text, timezone=name)

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with ``instant`` as its DTSTART, itself if it has DTSTART already.

        DTSTART is the next whole minute, or the next second if the rule repeats by the second.
        """
        # DTSTART comes first in the normal form. Beat calls this for each run, so it must be fast.
        if self.text.startswith("DTSTART"):
            return self
        instant = utc(instant, field="anchor")
        if not FIRST_YEAR + 1 < instant.year < LAST_YEAR - 1:
            reason = f"the year must lie between {FIRST_YEAR + 1} and {LAST_YEAR - 1}"
            raise invalid_part("anchor", format_moment(instant), reason)
        recurrence = anchored(prepare(self.text, self.timezone).recurrence, instant)
        return RRule(recurrence.text, timezone=recurrence.zone)
