"""``restore``: bring back a deleted schedule, or the fields that a schedule had before an edit.

The audit contains the values:

    delete            all fields of the schedule; restore() creates it again, planned from now
    update, restore   the old values of the changed fields; restore() sets the old values of this
                      edit and of all later edits

The audit contains only the host of a ping URL, so a restore does not set ``ping_url``. A pause is
not a field but a state, so a restore of an update neither pauses nor resumes the schedule.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit import audit, edits, owner_zone, used_calendars
from celery_dynbeat.api.edit.fields import FIELD_DEFAULTS, PAYLOAD_FIELDS
from celery_dynbeat.api.results import ChangeInfo, ScheduleInfo
from celery_dynbeat.common.errors import ChangeNotFoundError
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Change
from celery_dynbeat.planning import spec_from_row
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import change_pages
from celery_dynbeat.triggers import Once, Trigger
from celery_dynbeat.triggers.wrappers import nominal

#: The maximum number of edits after the restored edit that a call reads.
MAX_LATER = 5_000
_PAGE = 500
#: The fields of the audit that a restore sets, without the trigger.
_FIELDS = frozenset({"task", *PAYLOAD_FIELDS, *FIELD_DEFAULTS} - {"ping_url"})
_INSTANTS = frozenset({"start_at", "end_at"})
_TRIGGER = ("trigger", "given_trigger")
#: After these, the name can belong to another schedule.
_OTHER_SCHEDULE = frozenset({Action.CREATE, Action.DELETE, Action.RENAME, Action.MOVE})
_MAX_ID = 2**63 - 1


class RestoreCalls(Calls):
    """The call that restores a schedule from the audit."""

    def restore(
        self,
        change_id: int,
        *,
        expected_version: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> ScheduleInfo:
        """Restore the state of a schedule before an edit. ``change_id`` is its id in ``changes()``.

        - The edit is a ``delete``: the schedule is created again, with a new id. It is planned from
          now. Its earlier runs are not in ``runs(name)``, but in ``runs()``. ``run_count`` starts
          at 0, and so does the ``COUNT`` of an ``RRule`` without ``DTSTART``. Fire times that
          ``skip()`` removed are not removed again.
        - The edit is an ``update`` or a ``restore``: the fields that this edit and later edits
          changed get their values from before this edit. Whether the schedule is paused does not
          change.
        - The audit contains only the host of a ``ping_url``. A restore does not set this field.
        - An interval without an anchor counts from the restore.

        The limits, the allowed tasks and the other rules apply as for ``create()`` and
        ``update()``. Nothing fires retroactively, so a one-off whose instant has passed is refused.

        Raises ChangeNotFoundError, even if the edit exists but belongs to an owner outside the
        scope. Raises ScheduleExistsError if the owner already has a schedule with the name of the
        deleted schedule, and OwnerLimitError. Raises ScheduleNotFoundError and StaleScheduleError
        for an earlier version. Raises InvalidScheduleError and InvalidTriggerError if the state is
        no longer valid.

        >>> _ = mine.update("digest", description="new")
        >>> mine.delete("digest")
        >>> deletion, update = mine.changes("digest")[:2]
        >>> mine.restore(deletion.id).description
        'new'
        """
        checks.check_integer("change_id", change_id, minimum=1, maximum=_MAX_ID)

        def work(session: Session) -> ScheduleInfo:
            change = change_pages.get(session, change_id=change_id, owner=self._owner)
            if change is None:
                raise ChangeNotFoundError(owner=self._owner, change_id=change_id)
            old = change.old_values
            if change.action == Action.DELETE and old is not None:
                return _create(self._context, session, change, old)
            if change.action in {Action.UPDATE, Action.RESTORE} and old is not None:
                return _change(self._context, session, change, expected_version=expected_version)
            rule = (
                f"is a {change.action!r}, which has no earlier fields: give the id of a 'delete',"
                " an 'update' or a 'restore' of an existing schedule, from changes()"
            )
            raise checks.invalid("change_id", change_id, rule)

        return self._write(session, work, actor=actor, reason=reason)


def _create(
    context: Context, session: Session, change: Change, old: Mapping[str, Any]
) -> ScheduleInfo:
    """Create the deleted schedule again."""
    owner, name = _schedule_of(change)
    given = {**_fields(old), **_pause(old, now=context.clock.now())}
    task, trigger = given.pop("task", None), _trigger(change, old)
    if trigger is None:
        raise checks.invalid("change_id", change.id, "has no trigger: the audit is incomplete")
    clock = owner_zone.lock_new(context, session, owner, needs_zone=trigger.needs_zone)
    calendars = used_calendars.read(session, trigger)
    now = context.clock.now()
    row = edits.new_row(
        context,
        owner=owner,
        name=name,
        task=task,
        trigger=trigger,
        given=given,
        clock=clock,
        calendars=calendars,
        now=now,
    )
    _check_not_passed(context, row, now=now)
    edits.insert(context, session, row, calendars=calendars, now=now, action=Action.RESTORE)
    return ScheduleInfo.of(row)


def _change(
    context: Context, session: Session, change: Change, *, expected_version: int | None
) -> ScheduleInfo:
    """Set the fields of an existing schedule to their values before an edit."""
    owner, name = _schedule_of(change)
    before = _before(session, change)
    trigger = _trigger(change, before)
    # The owner is locked before the schedule, in the order of all locks.
    zone = owner_zone.lock(context, session, owner, trigger)
    row = edits.lock(session, owner=owner, name=name, expected_version=expected_version)
    if row.managed_by:
        rule = f"{name!r} follows its entry in beat_schedule: change that entry"
        raise checks.invalid("change_id", change.id, rule)
    if row.created_at > change.changed_at:
        # The audit was off, or the snapshot of the transaction is older than the edit.
        rule = f"is an edit of an earlier schedule {name!r}: restore its 'delete', if there is one"
        raise checks.invalid("change_id", change.id, rule)
    # The row lock reads the newest row, also if the snapshot of the transaction is older.
    if _before(session, change, latest=True) != before:
        rule = f"{name!r} was edited at the same time: call restore() again"
        raise checks.invalid("change_id", change.id, rule)
    now = context.clock.now()
    values = _fields(before)
    if trigger is not None:
        values["trigger"] = trigger
        columns = edits.trigger_columns(trigger, timezone=zone, now=now)
        _check_not_passed(context, ScheduleColumns.edited(row, columns), now=now)
    with audit.recording(context, session, row, Action.RESTORE, now=now):
        edits.change(context, session, row, values, now=now, timezone=zone)
    return ScheduleInfo.of(row)


def _schedule_of(change: Change) -> tuple[str, str]:
    if change.owner is None or not change.name:
        rule = "is not an edit of a schedule: give the id of an edit with the name of a schedule"
        raise checks.invalid("change_id", change.id, rule)
    return change.owner, change.name


def _before(session: Session, change: Change, *, latest: bool = False) -> Mapping[str, Any]:
    """Return the fields that the edit and all later edits of the schedule changed, as they were."""
    values: dict[str, Any] = {}
    for number, edit in enumerate(_newest(session, change, latest=latest)):
        if edit.id == change.id:
            return {**values, **(edit.old_values or {})}
        is_new = edit.action == Action.RESTORE and edit.old_values is None
        if edit.action in _OTHER_SCHEDULE or is_new:
            rule = (
                f"a later edit is a {edit.action!r} (id {edit.id}): the edits before it may be of"
                " another schedule. Pass the values in its 'before' to update() instead"
            )
            raise checks.invalid("change_id", change.id, rule)
        if number >= MAX_LATER:
            break
        values |= edit.old_values or {}
    rule = f"has more than {MAX_LATER:,} later edits of its schedule: update() the fields"
    raise checks.invalid("change_id", change.id, rule)


def _newest(session: Session, change: Change, *, latest: bool) -> Iterator[Change]:
    """Yield the edits of the schedule from the newest to ``change``."""
    matching = change_pages.ChangeFilter(
        owner=change.owner, name=change.name, since=change.changed_at
    )
    after = None
    read = partial(change_pages.page, session, matching=matching, limit=_PAGE, latest=latest)
    while rows := read(after=after):
        yield from rows
        after = rows[-1].changed_at, rows[-1].id


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``update`` for values of the audit, without the trigger."""
    return {name: _argument(name, value) for name, value in values.items() if name in _FIELDS}


def _argument(name: str, value: Any) -> Any:
    # Only manual SQL writes a text that is not an instant. The check of the field refuses it.
    return _instant(value) or value if name in _INSTANTS else value


def _pause(old: Mapping[str, Any], *, now: datetime) -> Mapping[str, Any]:
    """Return the pause of a deleted schedule, as arguments of ``create``."""
    until = _instant(old.get("paused_until"))
    if old.get("enabled", True) is not False or (until is not None and until <= now):
        return {}
    return {
        "enabled": False,
        "paused_reason": str(old.get("paused_reason") or ""),
        "paused_until": until,
    }


def _instant(value: Any) -> datetime | None:
    try:
        return None if value is None else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _trigger(change: Change, values: Mapping[str, Any]) -> Trigger | None:
    """Return the trigger in the values of the audit, in the form that ``create`` takes, or None."""
    given: Any = values.get("given_trigger") or values.get("trigger")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise checks.invalid("change_id", change.id, f"has no valid trigger: {shorten(given)}")
    return Trigger.from_json(given)


def _check_not_passed(context: Context, row: ScheduleColumns, *, now: datetime) -> None:
    """Raise InvalidScheduleError for a one-off that has passed, even within the grace."""
    trigger = nominal(spec_from_row(row, context.settings).trigger)
    if isinstance(trigger, Once) and trigger.at <= now:
        rule = f"its instant has passed, it is {now} now, and a restore fires nothing retroactively"
        raise checks.invalid("trigger", trigger, rule)


def is_restorable(change: ChangeInfo) -> bool:
    """Return whether ``restore`` accepts an edit, if no later edit prevents it."""
    kinds = {Action.DELETE, Action.UPDATE, Action.RESTORE}
    return bool(change.name) and change.before is not None and change.action in kinds
