"""The shared calendars of the application: days that triggers exclude, and business days.

    put()      one row: a new version of the days; no schedule is locked or read
    claim      beat reads the present days: a fire time on a new day is not sent
    replan     beat plans the schedules that use the calendar again, in batches
    get()      says how many schedules wait for that, and when the version was in force

Calendars belong to the application. The schedules of each owner can use them by name.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import audit, edits
from celery_dynbeat.api.edit.conversion import TriggerLike
from celery_dynbeat.api.results import BoundedCount, CalendarInfo, Page, cursors
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.common.errors import (
    CalendarInUseError,
    CalendarNotFoundError,
    InvalidTriggerError,
)
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import FIRST_YEAR, LAST_YEAR
from celery_dynbeat.db.calendar_models import Calendar
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import calendars
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.base import PLAN_STEPS, BudgetExceededError, SearchBudget
from celery_dynbeat.triggers.calendar_days import WEEKDAY_NAMES, WEEKEND, check_name, weekend_text
from celery_dynbeat.triggers.composite.on_business_day import MAX_SHIFT
from celery_dynbeat.triggers.wrappers import check_preparation, too_many_steps
from celery_dynbeat.triggers.zones import zone_name

#: Dates of one calendar.
MAX_DATES = 2_000
#: Two files are the same if they have the same days from this long ago on, and the stored days
#: reach this far ahead.
_COMPARED_PAST, _LEAST_AHEAD = timedelta(days=365), timedelta(days=9 * 365)
#: The number of tries to insert a calendar that other calls create and delete at the same time.
_MAX_ATTEMPTS = 3
#: The order of the pages, as their cursors name it.
_BY_NAME = "calendar_name"
#: Triggers that combine others. Each step of a search would search these triggers.
_COMBINED = frozenset({"any_of", "excluding", "on_business_day"})


class Calendars(Calls):
    """The calls for the shared calendars of the application.

    ``trigger.excluding(calendar="holidays-de")`` excludes the days of a calendar.
    ``trigger.on_business_day("next", calendar="holidays-de")`` moves fire times to business days.

    Every call accepts ``session=``. A call with a session joins its transaction. Every change
    accepts ``actor=`` and ``reason=`` for the audit. The defaults are the values from
    ``Dynbeat.acting``.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, None)

    def put(
        self,
        name: str,
        *,
        dates: Iterable[date] | None = None,
        trigger: TriggerLike | None = None,
        ics: str | bytes | None = None,
        timezone: str | ZoneInfo | None = None,
        weekend: Iterable[str] | None = None,
        allow_empty: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> CalendarInfo:
        """Create the calendar, or replace its days. An equal definition changes nothing.

        - ``name``: 1 to 100 of the characters a-z, 0-9, ``.``, ``_`` and ``-``.
        - Give exactly one of three. ``dates``: at most 2,000. ``trigger``: each day on which the
          trigger fires. It must not combine other triggers. ``ics``: the text of an iCalendar file,
          whose events become dates of the next 10 years. This needs the extra ``ics``. Another call
          with the same file changes nothing for a year.
        - A ``trigger`` that names no zone uses ``timezone``, and so do events at a time of day.
          None means the zone of the days of each schedule. For events, it means their own zone.
        - ``weekend``: the days of the week that are not business days. The default is ``["sat",
          "sun"]``.
        - A calendar without a day is refused unless ``allow_empty`` is true, so that a wrong file
          does not turn all holidays into business days.

        A day that you add counts for each claim that begins after the commit. A day that you remove
        counts for a schedule when beat has planned it again. Beat begins within a second, in
        batches. ``waiting_schedules`` of the result, and of ``get``, is the number of schedules
        that still wait.

        Raises InvalidScheduleError and InvalidTriggerError.

        >>> made = dynbeat.calendars.put("holidays-de", dates=[date(2026, 12, 25)])
        >>> made.version
        1
        >>> daily = Cron("0 9 * * *").excluding(calendar="holidays-de")
        >>> mine.update("digest", trigger=daily).trigger.calendar_names
        ('holidays-de',)
        """
        _check_name(name)
        if not isinstance(allow_empty, bool):
            raise checks.invalid("allow_empty", allow_empty, "must be True or False")
        zone, days = _checked_zone(timezone), _checked_weekend(weekend)
        # This comes before the transaction, which holds locks, because reading a file can take a
        # second.
        definition = _definition(
            self._context,
            dates=dates,
            trigger=trigger,
            ics=ics,
            name=name,
            zone=zone,
            now=self._context.now(session),
        )
        if not definition.get("dates", definition) and not allow_empty:
            rule = "pass allow_empty=True if the calendar must be empty"
            if ics is None:
                raise checks.invalid("dates", [], f"the calendar would have no day: {rule}")
            span = "from a year ago to 10 years ahead"
            raise checks.invalid("ics", "the file", f"has no event {span}: {rule}")
        values = {
            "definition": json.dumps(definition, separators=(",", ":")),
            "timezone": zone,
            "weekend": days,
        }

        def work(session: Session) -> CalendarInfo:
            now = self._context.clock.now()
            return _info(session, _put(self._context, session, name, values, now=now))

        return self._write(session, work, actor=actor, reason=reason)

    def get(self, name: str, *, session: Session | None = None) -> CalendarInfo:
        """Return the calendar, and the number of schedules that use it.

        Raises CalendarNotFoundError.
        """
        _check_name(name)

        def work(session: Session) -> CalendarInfo:
            row = calendars.get(session, name=name)
            if row is None:
                raise CalendarNotFoundError(name=name)
            return _info(session, row)

        return self._context.read_many(session, work)

    def list(
        self,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page[CalendarInfo]:
        """Return one page of up to ``limit`` calendars, by name, without numbers of schedules.

        ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises
        InvalidScheduleError.
        """
        checks.check_limit("limit", limit)
        key = ""
        if after is not None:
            key = cursors.decode(after, order=_BY_NAME, parts=(cursors.as_text,))[0]

        def work(session: Session) -> Page[CalendarInfo]:
            rows = calendars.page(session, after=key, limit=limit + 1)
            return page_of(rows, limit=limit, order=_BY_NAME, info=_listed, key=_key)

        return self._context.read_many(session, work)

    def delete(
        self,
        name: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> None:
        """Delete the calendar.

        Raises CalendarNotFoundError, and CalendarInUseError while a schedule uses it.
        """
        _check_name(name)

        def work(session: Session) -> None:
            row = calendars.lock(session, name=name)
            if row is None:
                raise CalendarNotFoundError(name=name)
            _check_unused(session, row)
            values = _audited(row)
            session.expunge(row)
            try:
                with savepoint(session):
                    calendars.remove(session, calendar_id=row.id)
            except IntegrityError:
                # Another transaction has created a schedule that uses it.
                raise CalendarInUseError(name=name, schedules=1, is_exact=False) from None
            _record(self._context, session, Action.DELETE_CALENDAR, old=values)

        self._write(session, work, actor=actor, reason=reason)


def _put(
    context: Context, session: Session, name: str, values: Mapping[str, Any], *, now: datetime
) -> Calendar:
    """Write the calendar and return its locked row."""
    by = {"updated_at": now, "updated_by": current_actor().actor}
    row = calendars.lock(session, name=name) or _add(context, session, name, {**values, **by})
    if _is_same(row, values, now=now):
        return row
    before = _audited(row)
    for key, value in {**values, **by}.items():
        setattr(row, key, value)
    row.version += 1
    is_used = calendars.count_schedules(session, calendar_id=row.id, limit=1) > 0
    row.in_force_at = None if is_used else now
    session.flush()
    _record(context, session, Action.PUT_CALENDAR, old=before, new=_audited(row))
    if is_used:
        context.notifier.notify(session)
    return row


def _add(context: Context, session: Session, name: str, values: Mapping[str, Any]) -> Calendar:
    """Insert the calendar, unless another transaction has just inserted it.

    Return its locked row.
    """
    # No schedule uses it, so it is in force.
    now = values["updated_at"]
    new = {"name": name, "version": 1, "created_at": now, "in_force_at": now, **values}
    for _ in range(_MAX_ATTEMPTS):
        is_new = calendars.add(session, new)
        row = calendars.lock(session, name=name)
        if row is not None:
            if is_new:
                _record(context, session, Action.PUT_CALENDAR, new=_audited(row))
            return row
        # Another transaction has inserted the row, and one has deleted it since.
    raise checks.invalid("name", name, "other calls create and delete it now: repeat the call")


def _is_same(row: Calendar, values: Mapping[str, Any], *, now: datetime) -> bool:
    if any(getattr(row, key) != value for key, value in values.items() if key != "definition"):
        return False
    stored, given = row.definition, values["definition"]
    return stored == given or _is_same_file(stored, given, now=now)


def _is_same_file(stored: str, given: str, *, now: datetime) -> bool:
    """Return whether both definitions are of files with the same days, as far as both reach.

    The stored definition must still reach far ahead. If the dates were replaced in each call, the
    days of repeating events would reach further each time, and beat would plan the schedules again
    each time.
    """
    try:
        old, new = json.loads(stored), json.loads(given)
        first, until = (now - _COMPARED_PAST).date().isoformat(), old["until"]
        reaches_far = "until" in new and until >= (now + _LEAST_AHEAD).date().isoformat()
        days, others = (
            [day for day in each["dates"] if first <= day <= until] for each in (old, new)
        )
    # It is not from a file, or manual SQL has damaged it.
    except (ValueError, KeyError, TypeError):
        return False
    return reaches_far and days == others


def _definition(
    context: Context,
    *,
    dates: Iterable[date] | None,
    trigger: TriggerLike | None,
    ics: str | bytes | None,
    name: str,
    zone: str | None,
    now: datetime,
) -> dict[str, Any]:
    """Return the definition as its row stores it."""
    given = {"dates": dates, "trigger": trigger, "ics": ics}
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise checks.invalid("dates", kinds, "give exactly one of dates, trigger and ics")
    if trigger is not None:
        return {"trigger": _trigger_json(context, trigger, name=name, zone=zone, now=now)}
    if ics is not None:
        return context.compute(partial(_of_file, ics, zone=zone, now=now))
    return {"dates": [day.isoformat() for day in _checked_dates(dates)]}


def _of_file(ics: str | bytes, *, zone: str | None, now: datetime) -> dict[str, Any]:
    # A late import: it needs an optional package.
    from celery_dynbeat.api.ical import HORIZON, dates_of  # noqa: PLC0415

    days = _checked_dates(dates_of(ics, timezone=zone, now=now))
    until = (now + HORIZON).date().isoformat()
    return {"dates": [day.isoformat() for day in days], "until": until}


def _trigger_json(
    context: Context, given: TriggerLike, *, name: str, zone: str | None, now: datetime
) -> Mapping[str, Any]:
    trigger = edits.as_trigger(context, given).resolved_at(now)
    if trigger.kind in _COMBINED:
        rule = "must be a plain trigger: a calendar cannot combine triggers or use calendars"
        raise checks.invalid("trigger", trigger, rule)
    if trigger.needs_budget:
        placed = trigger.anchored_at(now).hashed_by(name).in_zone(zone or "UTC")
        _check_cost(placed, given=trigger, now=now)
    return trigger.to_json()


def _check_cost(trigger: Trigger, *, given: Trigger, now: datetime) -> None:
    """Raise InvalidScheduleError if a plan cannot ask for each day of the longest move.

    This may take half of beat's budget for a plan, as the searches of a schedule in ``limits``.
    """
    budget = SearchBudget(PLAN_STEPS // 2)
    try:
        check_preparation(trigger, trigger.preparation_steps)
        for number in range(MAX_SHIFT + 1):
            trigger.next_within(now + timedelta(days=number), budget)
    except BudgetExceededError:
        error = too_many_steps(trigger, budget, task=f"searching {MAX_SHIFT + 1} days")
        raise checks.invalid("trigger", given, str(error)) from None
    except InvalidTriggerError as error:
        raise checks.invalid("trigger", given, str(error)) from error


def _checked_dates(given: object) -> Sequence[date]:
    """Return the different dates in order."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise checks.invalid("dates", given, "must be an iterable of dates")
    days = set[date]()
    for day in checks.copy_as(iter, "dates", given):
        if isinstance(day, datetime) or not isinstance(day, date):
            raise checks.invalid("dates", day, "each must be a datetime.date")
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise checks.invalid("dates", day, f"the year must be {FIRST_YEAR} to {LAST_YEAR}")
        days.add(day)
        if len(days) > MAX_DATES:
            rule = f"a calendar has at most {MAX_DATES:,}: use a trigger for days that repeat"
            raise checks.invalid("dates", f"more than {MAX_DATES:,} dates", rule)
    return tuple(sorted(days))


def _checked_weekend(given: object) -> str:
    if given is None:
        return weekend_text(WEEKEND)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise checks.invalid("weekend", given, f"must be an iterable of {', '.join(WEEKDAY_NAMES)}")
    names = checks.copy_as(list, "weekend", given)
    for name in names:
        if not isinstance(name, str) or name not in WEEKDAY_NAMES:
            rule = f"each must be one of {', '.join(WEEKDAY_NAMES)}"
            raise checks.invalid("weekend", name, rule)
    if {*names} == {*WEEKDAY_NAMES}:
        raise checks.invalid("weekend", names, "at least one day of the week must be left")
    return weekend_text({WEEKDAY_NAMES.index(name) for name in names})


def _checked_zone(given: Any) -> str | None:
    if given is None:
        return None
    try:
        return zone_name(given)
    except InvalidTriggerError as error:
        raise checks.invalid("timezone", given, str(error)) from error


def _check_name(name: object) -> None:
    try:
        check_name(name)
    except InvalidTriggerError as error:
        raise checks.invalid("name", name, str(error).partition(": the name ")[2]) from error


def _check_unused(session: Session, row: Calendar) -> None:
    count = calendars.count_schedules(session, calendar_id=row.id)
    if count:
        used = min(count, calendars.COUNT_LIMIT)
        raise CalendarInUseError(name=row.name, schedules=used, is_exact=count == used)


def _info(session: Session, row: Calendar) -> CalendarInfo:
    used = calendars.count_schedules(session, calendar_id=row.id)
    # An unused calendar has no waiting schedules.
    waiting = used and calendars.count_schedules(session, calendar_id=row.id, below=row.version)
    return CalendarInfo.of(
        row, calendars.days_of(row), schedules=_bounded(used), waiting=_bounded(waiting)
    )


def _bounded(count: int) -> BoundedCount:
    limit = calendars.COUNT_LIMIT
    return BoundedCount(count=min(count, limit), exact=count <= limit)


def _listed(row: Calendar) -> CalendarInfo:
    return CalendarInfo.of(row, calendars.days_of(row))


def _key(info: CalendarInfo) -> tuple[str]:
    return (info.name,)


def _audited(row: Calendar) -> dict[str, Any]:
    """Return what the audit has of a calendar. Thousands of dates are only counted."""
    days = calendars.days_of(row)
    return {
        "calendar": row.name,
        "version": row.version,
        "dates": len(days.dates),
        "trigger": None if days.trigger is None else days.trigger.to_json(),
        "timezone": row.timezone,
        "weekend": row.weekend,
    }


def _record(
    context: Context,
    session: Session,
    action: Action,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> None:
    edit = audit.Edit(owner=None, action=action, old=old, new=new)
    audit.record(context, session, [edit], now=context.clock.now())
