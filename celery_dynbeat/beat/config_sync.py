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
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat import store
from celery_dynbeat.api import audit, checks, edits, owner_clock
from celery_dynbeat.api.audit import acting
from celery_dynbeat.api.edits import Definition, RowEdit
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.beat.config_entries import convert, digest_of, entries_digest_of
from celery_dynbeat.beat.duties import Done
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidArgumentError,
    InvalidTriggerError,
    ScheduleExistsError,
)
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.db.types import escape_non_ascii
from celery_dynbeat.planning import NO_CALENDARS, Calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import calendars as calendars_store
from celery_dynbeat.store import nodes, owners, schedules
from celery_dynbeat.store.changes import new_triggers
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG, REFUSED_PREFIX
from celery_dynbeat.triggers import Trigger

logger = logging.getLogger(__name__)

#: Names of entries. The value of an entry whose calendar does not exist states this calendar.
LeftOut = Mapping[str, str | None]
#: The actor of these edits in the audit.
ACTOR = "beat_schedule"
#: An entry with this number of new rules within this time probably has a new one at each start.
_UNSTEADY_CHANGES = 3
_UNSTEADY_WINDOW = timedelta(days=7)


class EntriesDuty:
    """The duty that keeps ``beat_schedule`` written, for the beat with the name ``node``.

    Of the living beats, those whose entries were first seen last have the newest ones. When they
    have been gone for dynbeat_node_timeout, another beat writes its entries again.
    """

    def __init__(self, context: Context, *, node: str) -> None:
        self._context, self._node = context, node
        #: Of the entries: it identifies a release of the application.
        self.digest = entries_digest_of(context)
        #: Whether beat starts. A pass, unlike the start, waits for no application.
        self.is_starting = True
        self._left: LeftOut = {}
        self._is_superseded = False
        self._has_compared = False

    def run(self, now: datetime) -> Done:
        """Write the entries if this beat has the newest ones, and the rows have others."""
        context, is_first = self._context, not self._has_compared
        newer = partial(
            nodes.has_newer_entries,
            name=self._node,
            silent_since=now - context.settings.node_timeout,
            counts_stopped=not is_first,
        )
        was_superseded = self._is_superseded
        self._is_superseded = context.database.read(newer)
        if self._is_superseded:
            if not was_superseded:
                logger.warning(
                    "a running beat has newer entries of beat_schedule; those of this beat are"
                    " not written: end this beat, or restart it with the newer release",
                    extra={"event": Event.CONFIG_SUPERSEDED},
                )
        elif is_first:
            if not context.database.read(self._is_written):
                self._write()
        elif was_superseded or context.database.read(self._has_other_writer):
            self._write()
        elif self._left:
            self._write(only=self._left)
        self._has_compared = True
        return Done(again_after=context.settings.poll_interval if self._left else None)

    def _write(self, *, only: LeftOut | None = None) -> None:
        self._left = sync(self._context, only=only, waits=self.is_starting)

    def _has_other_writer(self, session: Session) -> bool:
        """Return whether a beat with other entries has written the rows."""
        written = store.get_entries_digest(session)
        return written not in {None, self.digest}

    def _is_written(self, session: Session) -> bool:
        """Return whether ``beat_schedule`` is in the database, as a sync would write it."""
        rows = schedules.managed_rows(session)
        if not rows and not self._context.beat_schedule:
            return True
        recorded = store.get_beat_schedule(session)
        return recorded is not None and recorded == digest_of(self._context, rows)


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
    zoned = [""] if any(each.needs_zone for each in triggers) else []
    clock = owner_clock.lock_many(context, session, [""], zoned=zoned)[""]
    managed = set(schedules.managed_names(session, managed_by=MANAGED_BY_CONFIG))
    if only is not None:
        managed.intersection_update(only)
    locked = schedules.locked_names(session, owner="", names=managed)
    removed = managed - converted.keys() - locked
    rows = _Rows(context, session, clock)
    rows.delete(removed)
    written = refused = 0
    missing: dict[str, str] = {}
    for name, fields in converted.items():
        if name in locked:
            continue
        error = fields if isinstance(fields, Exception) else rows.write(name, fields)
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
                rows.refuse(name, error)
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
    store.record_beat_schedule(session, digest, entries_digest=entries_digest_of(context))
    return left


def _has_missing_calendar(error: Exception) -> bool:
    return isinstance(error, InvalidTriggerError) and error.field == "calendar"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Writes the rows of the entries, in one transaction that has locked the application's row."""

    context: Context
    session: Session
    clock: OwnerClock

    def delete(self, names: Collection[str]) -> None:
        """Delete the rows of removed entries."""
        for name in sorted(names):
            row = schedules.lock(self.session, owner="", name=name)
            if row is not None:
                RowEdit(self.context, self.session, row, now=self.context.clock.now()).delete()

    def write(self, name: str, fields: Mapping[str, Any]) -> Exception | None:
        """Write the row of an entry. Return the error if the entry is refused, else None.

        It is RowLockedError if the API or a beat that has started at the same time has made the
        row.
        """
        try:
            with self.context.rejecting_unstorable():
                try:
                    self._upsert(name, fields)
                except ScheduleExistsError:
                    # Another beat that started at the same time has inserted the row.
                    self._upsert(name, fields)
        except (DynbeatError, RowLockedError) as error:
            return error
        return None

    def refuse(self, name: str, error: Exception) -> None:
        """Log that an entry is refused, and pause the row of its earlier form, if any."""
        # Some databases and logs reject lone surrogates and NUL.
        text = str(error).encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
        logger.error(
            "beat_schedule[%r] is refused; the other entries run: %s",
            name,
            text,
            extra={"event": Event.CONFIG_REFUSED, "owner": "", "schedule": name},
        )
        row = self._lock_managed(name)
        # A row that an operator paused keeps that reason, and stays paused after a correction.
        if row is None or row.finished_at is not None or not (row.enabled or _is_refused(row)):
            return
        reason = f"{REFUSED_PREFIX}{text}"[: checks.TEXT_LENGTH]
        escaped = escape_non_ascii(reason)[: checks.TEXT_LENGTH]
        if row.paused_reason in {reason, escaped}:
            return
        try:
            with self.context.rejecting_unstorable(), savepoint(self.session):
                self._pause(row, reason=reason)
        except InvalidArgumentError:
            # The reason contains a character that the database cannot store.
            self._pause(row, reason=escaped)

    def _pause(self, row: Schedule, *, reason: str) -> None:
        context, session, now = self.context, self.session, self.context.clock.now()
        with audit.recording(context, session, row, Action.PAUSE, now=now, reason=reason):
            schedules.pause(session, row, reason=reason, now=now)

    def _lock_managed(self, name: object) -> Schedule | None:
        """Return the locked row of an entry, or None without one or if another has locked it."""
        try:
            with self.context.rejecting_unstorable(), savepoint(self.session):
                checked = checks.check_name("name", name)
                row = schedules.lock(self.session, owner="", name=checked, waits=False)
        except (InvalidArgumentError, RowLockedError):
            return None
        return row if row is not None and row.managed_by == MANAGED_BY_CONFIG else None

    def _upsert(self, name: str, fields: Mapping[str, Any]) -> None:
        with savepoint(self.session):
            checks.check_name("name", name)
            row = schedules.lock(self.session, owner="", name=name, waits=False)
            if row is None:
                self._insert(name, fields)
            elif row.managed_by == MANAGED_BY_CONFIG:
                self._update(row, fields)
            else:
                msg = "a schedule of that name was made through the API; rename one of the two"
                raise InvalidArgumentError(msg, field="name")

    def _insert(self, name: str, fields: Mapping[str, Any]) -> None:
        context, session, now = self.context, self.session, self.context.clock.now()
        calendars = self._lock_calendars(fields["trigger"])
        given = Definition(
            owner="",
            name=name,
            task=fields["task"],
            trigger=fields["trigger"],
            fields={key: value for key, value in fields.items() if key not in {"task", "trigger"}},
        )
        clock = self.clock.with_calendars(calendars)
        new = edits.new_row(context, given, clock=clock, now=now)
        new.managed_by = MANAGED_BY_CONFIG
        new.id = schedules.add(session, new.insert_values())
        owner_clock.link(session, [new], calendars, is_new=True)
        audit.created(context, session, [new], now=now)

    def _update(self, row: Schedule, fields: Mapping[str, Any]) -> None:
        context, session, now = self.context, self.session, self.context.clock.now()
        self._lock_calendars(fields["trigger"])
        resume, rule = _is_refused(row), (row.trigger_kind, row.trigger_spec)
        edit = RowEdit(context, session, row, now=now, timezone=self.clock.timezone)
        with audit.recording(context, session, row, Action.UPDATE, now=now):
            edit.change(fields, resume=resume)
        if (row.trigger_kind, row.trigger_spec) != rule:
            _warn_if_unsteady(session, row.name, now=now)

    def _lock_calendars(self, trigger: Trigger) -> Calendars:
        """Lock the calendars of an entry, so that the INSERT of their links does not wait.

        Raises RowLockedError if another transaction has locked one, and InvalidTriggerError if one
        does not exist.
        """
        names = {*trigger.calendar_names, *self.clock.calendars}
        if not names:
            return NO_CALENDARS
        free = calendars_store.lock_free(self.session, names)
        calendars = {**owner_clock.read_calendars(self.session, trigger), **self.clock.calendars}
        if calendars.keys() - free.keys():
            raise RowLockedError
        return calendars


def _is_refused(row: Schedule) -> bool:
    """Return whether the row is paused only because its entry was refused."""
    return not row.enabled and (row.paused_reason or "").startswith(REFUSED_PREFIX)


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
