"""The shared calendars of the application: excluded days, quiet days and business days.

    upsert()     one row: a new version of the days; no schedule is locked or read
    claim      beat reads the present days: a fire time on a new day is not sent
    replan     beat plans the schedules that use the calendar again, in batches
    get()      says how many schedules wait for that, and when the version was in force

Calendars belong to the application. The schedules of each owner can use them by name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, checks
from celery_dynbeat.api.audit import current_actor
from celery_dynbeat.api.calls import CALENDAR_NAME, PAGE_SIZE, Calls
from celery_dynbeat.api.results import CalendarInfo, Page
from celery_dynbeat.common.errors import ConflictError, InvalidTriggerError, NotFoundError
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import FIRST_YEAR, LAST_YEAR, as_text
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Calendar
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import calendars, owners
from celery_dynbeat.triggers.calendar_days import WEEKDAY_NAMES, WEEKEND, check_name, weekend_text

#: Dates of one calendar.
MAX_DATES = 2_000
#: Characters of the note of a date.
MAX_NOTE_LENGTH = 200
#: The number of tries to insert a calendar that other calls create and delete at the same time.
_MAX_ATTEMPTS = 3


class Calendars(Calls):
    """The calls for the shared calendars of the application.

    ``trigger.excluding(calendar="holidays-de")`` excludes the days of a calendar.
    ``trigger.on_business_day("next", calendar="holidays-de")`` moves fire times to business days.
    ``set_quiet_hours(calendar="holidays-de")`` makes its dates quiet days of an owner.

    ``bound`` returns the same calls in a transaction, or in the name of an actor.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, None)

    def upsert(
        self,
        name: str,
        *,
        dates: Mapping[date, str] | Iterable[date],
        weekend: Iterable[str] | None = None,
        allow_empty: bool = False,
    ) -> CalendarInfo:
        """Create the calendar, or replace its days. An equal definition changes nothing.

        - ``name``: 1 to 100 of the characters a-z, 0-9, ``.``, ``_`` and ``-``.
        - ``dates``: at most 2,000 dates, or a mapping from each date to a note of up to 200
          characters, such as the name of the holiday.
        - ``weekend``: the days of the week that are not business days. The default is ``["sat",
          "sun"]``.
        - A calendar without a day is refused unless ``allow_empty`` is true, so that a wrong file
          does not turn all holidays into business days.

        A day that you add counts for each claim that begins after the commit. A day that you remove
        counts for a schedule when beat has planned it again. Beat begins within a second, in
        batches. ``waiting_schedules`` of the result, and of ``get``, is the number of schedules
        that still wait.

        Raises InvalidArgumentError.

        >>> christmas = {date(2026, 12, 25): "Christmas Day"}
        >>> made = dynbeat.calendars.upsert("holidays-de", dates=christmas)
        >>> made.version
        1
        >>> daily = Cron("0 9 * * *").excluding(calendar="holidays-de")
        >>> mine.update("digest", trigger=daily).trigger.calendar_names
        ('holidays-de',)
        """
        _check_name(name)
        checks.check_flag("allow_empty", allow_empty)
        found = _checked_dates(dates)
        if not found and not allow_empty:
            rule = "pass allow_empty=True if the calendar must be empty"
            raise checks.invalid("dates", [], f"the calendar would have no day: {rule}")
        stored = {day.isoformat(): note for day, note in found.items()}
        values = {
            "dates": json.dumps(stored, separators=(",", ":")),
            "weekend": _checked_weekend(weekend),
        }

        def work(session: Session) -> CalendarInfo:
            now = self._context.clock.now()
            return _counted(session, _put(self._context, session, name, values, now=now))

        return self._write(work)

    def get(self, name: str) -> CalendarInfo:
        """Return the calendar, and the number of schedules that use it.

        Raises NotFoundError.
        """
        _check_name(name)

        def work(session: Session) -> CalendarInfo:
            row = calendars.get(session, name=name)
            if row is None:
                raise NotFoundError("calendar", name)
            return _counted(session, row)

        return self._read_many(work)

    def list(
        self,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
    ) -> Page[CalendarInfo]:
        """Return one page of up to ``limit`` calendars, by name, without numbers of schedules.

        ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises
        InvalidArgumentError.
        """
        order, first = CALENDAR_NAME, ""
        return self._page(calendars.page, order, _listed, limit=limit, after=after, first=first)

    def delete(
        self,
        name: str,
    ) -> None:
        """Delete the calendar.

        Raises NotFoundError, and ConflictError with code ``"in_use"`` while a schedule or the quiet
        hours of an owner use it.
        """
        _check_name(name)

        def work(session: Session) -> None:
            row = calendars.lock(session, name=name)
            if row is None:
                raise NotFoundError("calendar", name)
            _check_unused(self._context, session, row)
            values = _audited(row)
            session.expunge(row)
            try:
                with savepoint(session):
                    calendars.remove(session, calendar_id=row.id)
            except IntegrityError:
                # Another transaction has created a schedule that uses it.
                raise _in_use(name, schedules=1, is_exact=False) from None
            _record(self._context, session, Action.DELETE_CALENDAR, old=values)

        self._write(work)


def _put(
    context: Context, session: Session, name: str, values: Mapping[str, Any], *, now: datetime
) -> Calendar:
    """Write the calendar and return its locked row."""
    by = {"updated_at": now, "updated_by": current_actor().actor}
    row = calendars.lock(session, name=name) or _add(context, session, name, {**values, **by})
    if all(getattr(row, key) == value for key, value in values.items()):
        return row
    before = _audited(row)
    for key, value in {**values, **by}.items():
        setattr(row, key, value)
    row.version += 1
    is_used = calendars.count_schedules(session, calendar_id=row.id, limit=1) > 0
    row.in_force_at = None if is_used else now
    session.flush()
    _record(context, session, Action.UPSERT_CALENDAR, old=before, new=_audited(row))
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
                _record(context, session, Action.UPSERT_CALENDAR, new=_audited(row))
            return row
        # Another transaction has inserted the row, and one has deleted it since.
    rule = "other calls create and delete it now: repeat the call"
    raise checks.conflict("name", name, rule, code="stale")


def _checked_dates(given: object) -> Mapping[date, str]:
    """Return the different dates in order, each with its note."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise checks.invalid(
            "dates", given, "must be an iterable of dates, or a mapping to notes", "type"
        )
    found = dict[date, str]()
    for day, note in checks.copy_as(_items, "dates", given):
        if isinstance(day, datetime) or not isinstance(day, date):
            raise checks.invalid("dates", day, "each must be a datetime.date", "type")
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise checks.invalid("dates", day, f"the year must be {FIRST_YEAR} to {LAST_YEAR}")
        found[day] = _checked_note(note)
        if len(found) > MAX_DATES:
            rule = f"a calendar has at most {MAX_DATES:,}"
            raise checks.invalid("dates", f"more than {MAX_DATES:,} dates", rule)
    return dict(sorted(found.items()))


def _items(given: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the dates with their notes. The dates of a list have no note."""
    return iter(given.items()) if isinstance(given, Mapping) else ((day, "") for day in given)


def _checked_note(given: object) -> str:
    note = as_text(given)
    if not isinstance(note, str) or len(note) > MAX_NOTE_LENGTH:
        raise checks.invalid(
            "dates", given, f"a note is text of up to {MAX_NOTE_LENGTH} characters"
        )
    return checks.check_text("dates", note)


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


def _check_name(name: object) -> None:
    try:
        check_name(name)
    except InvalidTriggerError as error:
        raise checks.invalid("name", name, str(error).partition(": the name ")[2]) from error


def _check_unused(context: Context, session: Session, row: Calendar) -> None:
    count = calendars.count_schedules(session, calendar_id=row.id)
    if count:
        used = min(count, calendars.COUNT_LIMIT)
        raise _in_use(row.name, schedules=used, is_exact=count == used)
    everybody = context.settings.quiet_hours
    owner = owners.first_with_quiet_calendar(session, row.name)
    if owner is not None or (everybody is not None and everybody.calendar == row.name):
        whose = "dynbeat_quiet_hours" if owner is None else f"the quiet hours of {owner!r}"
        raise _in_use(row.name, schedules=0, is_exact=True, used_by=whose)


def _in_use(
    name: str, *, schedules: int, is_exact: bool, used_by: str | None = None
) -> ConflictError:
    number = f"{schedules:,} schedules" if is_exact else f"more than {schedules:,} schedules"
    used_by = used_by or number
    return ConflictError(
        f"the calendar {name!r} is used by {used_by}: give them other triggers or quiet hours"
        " first, or upsert(dates=[], allow_empty=True)",
        code="in_use",
        field="name",
        name=name,
        schedules=schedules,
        is_exact=is_exact,
        used_by=used_by,
    )


def _counted(session: Session, row: Calendar) -> CalendarInfo:
    used = calendars.count_schedules(session, calendar_id=row.id)
    # An unused calendar has no waiting schedules.
    waiting = used and calendars.count_schedules(session, calendar_id=row.id, below=row.version)
    return _info(row, schedules=_bounded(used), waiting=_bounded(waiting))


def _bounded(count: int) -> BoundedCount:
    return BoundedCount(count=count).cut(calendars.COUNT_LIMIT)


def _listed(_session: Session, rows: Iterable[Calendar]) -> Iterable[CalendarInfo]:
    return map(_info, rows)


def _info(
    row: Calendar, *, schedules: BoundedCount | None = None, waiting: BoundedCount | None = None
) -> CalendarInfo:
    days = calendars.days_of(row)
    return CalendarInfo.of(
        row,
        dates={day: days.notes.get(day, "") for day in sorted(days.dates)},
        weekend=tuple(WEEKDAY_NAMES[number] for number in sorted(days.weekend)),
        schedules=schedules,
        waiting=waiting,
    )


def _audited(row: Calendar) -> dict[str, Any]:
    """Return what the audit has of a calendar. Thousands of dates are only counted."""
    days = calendars.days_of(row)
    return {
        "calendar": row.name,
        "version": row.version,
        "dates": len(days.dates),
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
