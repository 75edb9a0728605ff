"""Write the entries of Celery's ``beat_schedule`` to the database when beat starts.

They become schedules of the application itself (owner ""), one transaction for all of them:

    valid entry    -> its row is created or updated; edits of the row are lost, but a pause remains
    removed entry  -> its row is deleted
    invalid entry  -> refused: its name, the error and the fix are logged. If an earlier form of it
                      has a row, the row is paused until the entry is valid again
    no calendar    -> refused in the same way, and tried again until its calendar exists

An invalid entry does not affect the other entries.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, maybe_schedule
from sqlalchemy.orm import Session

from celery_dynbeat import transitions
from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import acting
from celery_dynbeat.api.edit import audit, edits, owner_zone, used_calendars
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.fields import DEFAULTS, PAYLOAD
from celery_dynbeat.beat.config_digest import digest_of, entries_digest_of
from celery_dynbeat.celery_schedules import trigger_of, without_zone
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    ScheduleExistsError,
)
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import suggestion
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.db.types import escape_non_ascii
from celery_dynbeat.planning import NO_CALENDARS, Calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, record_beat_schedule, schedules
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG, REFUSED_PREFIX
from celery_dynbeat.store.schedules.changes import new_triggers
from celery_dynbeat.triggers import Trigger

logger = logging.getLogger(__name__)

#: Names of entries. The value of an entry whose calendar does not exist states this calendar.
LeftOut = Mapping[str, str | None]
#: The actor of these edits in the audit.
ACTOR = "beat_schedule"
#: An entry with this number of new rules within this time probably has a new one at each start.
_UNSTEADY_CHANGES = 3
_UNSTEADY_WINDOW = timedelta(days=7)
_CELERY_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
#: The fields that Celery does not have.
_POLICIES = {name: value for name, value in DEFAULTS.items() if name not in PAYLOAD}
_KNOWN_KEYS = _CELERY_KEYS | _POLICIES.keys()


def sync(context: Context, *, only: LeftOut | None = None, waits: bool = True) -> LeftOut:
    """Make the managed schedules match the application's ``beat_schedule``, in one transaction.

    Return the names that were left out. Other transactions have locked their schedules or
    calendars, or their calendars do not exist; this error is logged once for each calendar. A later
    call has them as ``only``, unless a beat with newer entries is alive. Unless it ``waits``, a
    call changes nothing while another transaction has locked the owner.
    """
    converted = {
        name: convert(context, entry)
        for name, entry in context.beat_schedule.items()
        if entry is not None and (only is None or name in only)
    }
    with acting(actor=ACTOR):
        return context.write(
            None, lambda session: _sync(context, session, converted, only=only, waits=waits)
        )


def convert(context: Context, entry: Any) -> dict[str, Any] | Exception:
    """Return the fields of an entry, or the error if it is invalid."""
    try:
        fields = fields_of(entry, app=context.app)
    except (DynbeatError, ValueError, TypeError, KeyError) as error:
        return error
    trigger = without_zone(fields["trigger"], entry["schedule"], context.settings.timezone)
    return {**fields, "trigger": trigger}


def _sync(
    context: Context,
    session: Session,
    converted: Mapping[str, dict[str, Any] | Exception],
    *,
    only: LeftOut | None,
    waits: bool,
) -> LeftOut:
    # A pass of beat, unlike its start, does not wait for an application.
    if not waits and not owners.lock_free(session, owner=""):
        return only or {}
    # The owner before the schedules, in the order of all locks.
    triggers = [each["trigger"] for each in converted.values() if isinstance(each, dict)]
    needs_zone = any(each.needs_zone for each in triggers)
    clock = owner_zone.lock_new(context, session, "", needs_zone=needs_zone)
    managed = set(schedules.managed_names(session, managed_by=MANAGED_BY_CONFIG))
    if only is not None:
        managed.intersection_update(only)
    locked = schedules.locked_names(session, owner="", names=managed)
    removed = managed - converted.keys() - locked
    _delete(context, session, removed)
    written = refused = 0
    missing: dict[str, str] = {}
    for name, fields in converted.items():
        if name in locked:
            continue
        error = (
            fields
            if isinstance(fields, Exception)
            else _write(context, session, name, fields, clock=clock)
        )
        if error is None:
            written += 1
        elif isinstance(error, RowLockedError):
            locked.add(name)
        else:
            refused += 1
            if _has_missing_calendar(error):
                # The rest of the text names the calendars that exist, which change.
                missing[name] = str(error).partition(";")[0]
            if name not in missing or (only or {}).get(name) != missing[name]:
                _refuse(context, session, name, error)
    left = {**dict.fromkeys(locked), **missing}
    if only is not None and not written and not removed:
        return left
    logger.info(
        "entries of beat_schedule: %s written, %s removed",
        written,
        len(removed),
        extra={"event": Event.CONFIG_SYNCED, "written": written, "removed": len(removed)},
    )
    # A refused entry is logged at each start, so it must not be in a digest. A part of the entries
    # has no digest.
    is_complete = only is None and not locked and not refused
    digest = digest_of(context, schedules.managed_rows(session)) if is_complete else None
    record_beat_schedule(session.connection(), digest, entries_digest=entries_digest_of(context))
    return left


def _delete(context: Context, session: Session, names: Collection[str]) -> None:
    for name in sorted(names):
        row = schedules.lock(session, owner="", name=name)
        if row is not None:
            edits.delete(context, session, row, now=context.clock.now())


def _has_missing_calendar(error: Exception) -> bool:
    return isinstance(error, InvalidTriggerError) and error.field == "calendar"


def _write(
    context: Context, session: Session, name: str, fields: Mapping[str, Any], *, clock: OwnerClock
) -> Exception | None:
    """Write the row of an entry. Return the error if the entry is refused, else None.

    It is RowLockedError if the API or a beat that has started at the same time has made the row.
    """
    try:
        with context.rejecting_unstorable():
            _upsert_or_retry(context, session, name, fields, clock=clock)
    except (DynbeatError, RowLockedError) as error:
        return error
    return None


def _refuse(context: Context, session: Session, name: str, error: Exception) -> None:
    """Log that an entry is refused, and pause the row of its earlier form, if any."""
    # Some databases and logs reject lone surrogates and NUL.
    text = str(error).encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
    logger.error(
        "beat_schedule[%r] is refused; the other entries run: %s",
        name,
        text,
        extra={"event": Event.CONFIG_REFUSED, "owner": "", "schedule": name},
    )
    row = _managed_row(context, session, name)
    # A row that an operator paused keeps that reason, and stays paused after a correction.
    if row is None or row.finished_at is not None or not (row.enabled or _is_refused(row)):
        return
    reason = f"{REFUSED_PREFIX}{text}"[: checks.TEXT_LENGTH]
    escaped = escape_non_ascii(reason)[: checks.TEXT_LENGTH]
    if row.paused_reason in {reason, escaped}:
        return
    try:
        with context.rejecting_unstorable(), savepoint(session):
            _pause(context, session, row, reason=reason)
    except InvalidScheduleError:
        # The reason contains a character that the database cannot store.
        _pause(context, session, row, reason=escaped)


def _pause(context: Context, session: Session, row: Schedule, *, reason: str) -> None:
    now = context.clock.now()
    with audit.recording(context, session, row, Action.PAUSE, now=now, reason=reason):
        transitions.pause(session, row, reason=reason, now=now)


def _managed_row(context: Context, session: Session, name: object) -> Schedule | None:
    try:
        with context.rejecting_unstorable(), savepoint(session):
            row = schedules.lock(
                session, owner="", name=checks.check_name("name", name), waits=False
            )
    # A locked row is treated like a row that is not managed.
    except (InvalidScheduleError, RowLockedError):
        return None
    return row if row is not None and row.managed_by == MANAGED_BY_CONFIG else None


def _is_refused(row: Schedule) -> bool:
    """Return whether the row is paused only because its entry was refused."""
    return not row.enabled and (row.paused_reason or "").startswith(REFUSED_PREFIX)


def _upsert_or_retry(
    context: Context,
    session: Session,
    name: str,
    fields: Mapping[str, Any],
    *,
    clock: OwnerClock,
) -> None:
    try:
        with savepoint(session):
            _upsert(context, session, name, fields, clock=clock)
    except ScheduleExistsError:
        # Another beat that started at the same time has inserted the row.
        with savepoint(session):
            _upsert(context, session, name, fields, clock=clock)


def _upsert(
    context: Context, session: Session, name: str, fields: Mapping[str, Any], *, clock: OwnerClock
) -> None:
    checks.check_name("name", name)
    row = schedules.lock(session, owner="", name=name, waits=False)
    if row is not None and row.managed_by != MANAGED_BY_CONFIG:
        msg = "a schedule of that name was made through the API; rename one of the two"
        raise InvalidScheduleError(msg, field="name")
    now = context.clock.now()
    calendars = _lock_calendars(session, fields["trigger"], clock)
    if row is None:
        given = {key: value for key, value in fields.items() if key not in {"task", "trigger"}}
        new = edits.new_row(
            context,
            owner="",
            name=name,
            task=fields["task"],
            trigger=fields["trigger"],
            given=given,
            clock=clock,
            calendars=calendars,
            now=now,
        )
        new.managed_by = MANAGED_BY_CONFIG
        new.id = schedules.add(session, new.insert_values())
        used_calendars.link(session, [new], calendars, is_new=True)
        audit.created(context, session, [new], now=now)
        return
    resume = _is_refused(row)
    rule = (row.trigger_kind, row.trigger_spec)
    with audit.recording(context, session, row, Action.UPDATE, now=now):
        edits.change(context, session, row, fields, now=now, timezone=clock.timezone, resume=resume)
    if (row.trigger_kind, row.trigger_spec) != rule:
        _warn_if_unsteady(session, name, now=now)


def _warn_if_unsteady(session: Session, name: str, *, now: datetime) -> None:
    """Warn about a rule that each start changes: a daily schedule then runs twice on some days."""
    changed = new_triggers(
        session,
        owner="",
        name=name,
        actor=ACTOR,
        since=now - _UNSTEADY_WINDOW,
        limit=_UNSTEADY_CHANGES,
    )
    if len(changed) < _UNSTEADY_CHANGES:
        return
    logger.warning(
        "beat_schedule[%r] has a new rule at each start: %s changes in %s days. If a part of it is"
        " drawn at random, a daily task can run twice on the day of a start; use H or window",
        name,
        _UNSTEADY_CHANGES,
        _UNSTEADY_WINDOW.days,
        extra={"event": Event.CONFIG_UNSTEADY, "owner": "", "schedule": name},
    )


def _lock_calendars(session: Session, trigger: Trigger, clock: OwnerClock) -> Calendars:
    """Lock the calendars of an entry, so that the INSERT of their links does not wait.

    Raises RowLockedError if another transaction has locked one, and InvalidTriggerError if one does
    not exist.
    """
    names = {*trigger.calendar_names, *clock.calendars}
    if not names:
        return NO_CALENDARS
    # A late import: few triggers use calendars.
    from celery_dynbeat.store.calendars import lock_free  # noqa: PLC0415

    free = lock_free(session, names)
    calendars = {**used_calendars.read(session, trigger), **clock.calendars}
    if calendars.keys() - free.keys():
        raise RowLockedError
    return calendars


def fields_of(entry: Mapping[str, Any], *, app: Celery) -> dict[str, Any]:
    """Return the fields of the API for an entry. Raises InvalidScheduleError."""
    if not isinstance(entry, Mapping):
        raise checks.invalid("entry", entry, "must be a dict with 'task' and 'schedule'")
    unknown = sorted(map(str, entry.keys() - _KNOWN_KEYS))
    if unknown:
        raise checks.invalid(unknown[0], entry.get(unknown[0]), _unknown(unknown[0]))
    for key in ("task", "schedule"):
        if key not in entry:
            raise checks.invalid("entry", dict(entry), f"has no {key!r}")
    options = checks.copy_as(dict, "options", entry.get("options") or {})
    policies = _pop_policies(entry, options)
    if entry.get("relative"):
        rule = "rounded intervals are not supported; give the schedule an anchor or a crontab"
        raise checks.invalid("relative", entry["relative"], rule)
    return {
        "task": entry["task"],
        "trigger": _trigger(entry["schedule"], app=app),
        "args": entry.get("args") or (),
        "kwargs": entry.get("kwargs") or {},
        "options": options,
        **policies,
    }


def _unknown(key: str) -> str:
    if key in {"enabled", "paused_reason", "paused_until"}:
        return "unknown key; leave the entry out, or pause its schedule: for_owner('').pause(name)"
    hint = suggestion(key, sorted(_KNOWN_KEYS))
    return f"unknown key; {hint} (options of apply_async, such as queue, go into 'options')"


def _pop_policies(entry: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the policies among the keys of the entry and of ``options``; remove the latter.

    ``app.add_periodic_task(30, task.s(), overlap="skip")`` puts a policy into the options.
    """
    of_entry = {key: entry[key] for key in _POLICIES if key in entry}
    of_options = {key: options.pop(key) for key in _POLICIES if key in options}
    expires = _expires_after(options.pop("expires", None))
    twice = sorted(of_entry.keys() & of_options.keys())
    if twice:
        rule = "is given twice, as a key of the entry and in its options; remove one of them"
        raise checks.invalid(twice[0], of_entry[twice[0]], rule)
    policies = {**_POLICIES, **of_entry, **of_options}
    if expires is None:
        return policies
    if policies["expires_after"] is not None:
        rule = "is given twice, also as options['expires']; remove one of them"
        raise checks.invalid("expires_after", policies["expires_after"], rule)
    return {**policies, "expires_after": expires}


def _trigger(given: Any, *, app: Celery) -> Trigger:
    # As in Celery's beat, a crontab gets the time zone of the application.
    schedule = maybe_schedule(given, app=app) if isinstance(given, BaseSchedule) else given
    return trigger_of(schedule, timezone=str(app.timezone))


def _expires_after(expires: Any) -> Any:
    if expires is None or isinstance(expires, (int, float, timedelta)):
        return expires
    rule = "a fixed instant would expire all later runs; give seconds or a timedelta"
    raise checks.invalid("options['expires']", expires, rule)
