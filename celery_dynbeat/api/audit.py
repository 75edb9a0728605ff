"""Who makes an edit, and why; and one row of ``dynbeat_change`` for each edit, in its transaction.

The calls of the API do not compare values themselves:

    recording   a block that edits one locked row: the fields that differ after it
    created     new rows: all fields that are set
    deleted     rows before their DELETE: all fields that were set
    record      any other edit: its values are given

Values are named and written as ``ScheduleInfo.to_dict`` does. Durations are seconds. Of a ping URL
only the host is written.

The actor is a context variable. It has a separate value in each thread and each asyncio task. A new
task starts with the value of the task that creates it, and so does ``asyncio.to_thread``. A new
thread starts with the default.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import TEXT_LENGTH, check_json, check_name, check_text
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.common.errors import InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.common.infos import as_json
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import changes, schedules
from celery_dynbeat.triggers import parse_trigger

#: The columns that a user sets, and ``error``, which an edit removes.
_COLUMNS = (
    *(name for name, field in FIELDS.items() if not field.in_options),
    *("enabled", "paused_reason", "paused_until", "error", "version"),
)
#: Rows whose values are in memory at the same time.
BATCH_SIZE = 500
_TRIGGER_COLUMNS = ("trigger_kind", "trigger_spec", "timezone")


@dataclass(frozen=True, slots=True)
class Acting:
    """The actor of an edit and the reason. "" means that none was given."""

    actor: str = ""
    reason: str = ""


_NONE = Acting()
#: The blocks that have not ended, the innermost last.
_blocks: ContextVar[tuple[Acting, ...]] = ContextVar("dynbeat_acting", default=())


@contextmanager
def acting_as(*, actor: str | None, reason: str | None) -> Iterator[None]:
    """Do the edits of one call in the name of ``actor``. None means the innermost block's actor.

    Raises InvalidArgumentError.
    """
    if actor is None and reason is None:
        yield
        return
    present = current_actor()
    with acting(
        actor=present.actor if actor is None else actor,
        reason=present.reason if reason is None else reason,
    ):
        yield


@contextmanager
def acting(*, actor: str | None, reason: str = "") -> Iterator[None]:
    """Make ``actor`` and ``reason`` part of the audit of each edit in the block.

    ``actor`` has at most 255 characters, such as the name of a user. ``reason`` has at most 1,024.
    None means that no user is known, such as before a login. Blocks can be nested. The
    inner actor and reason replace the outer actor and reason. Raises InvalidArgumentError with
    field ``"actor"`` or ``"reason"``.
    """
    named = "" if actor is None else check_name("actor", actor, empty=True)
    block = Acting(named, check_text("reason", reason))
    _blocks.set((*_blocks.get(), block))
    try:
        yield
    finally:
        # reset(token) would fail, because a framework may leave the block in another context, which
        # has no token. A generator may end its block after a block that began later, or before it.
        _blocks.set(tuple(each for each in _blocks.get() if each is not block))


def current_actor() -> Acting:
    """Return the actor and the reason of the innermost ``acting`` block."""
    return (_blocks.get() or (_NONE,))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit. ``owner=None`` means everything, and ``name=""`` means the owner.

    ``old`` and ``new`` are the changed fields, ready for JSON. ``reason`` is used if the caller's
    ``acting`` block gives none.
    """

    owner: str | None
    name: str = ""
    action: Action
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    reason: str = ""


def record(context: Context, session: Session, edits: Iterable[Edit], *, now: datetime) -> None:
    """Write the edits with the present actor, one statement per batch, if edits are audited.

    ``edits`` is read only then.
    """
    if not context.settings.is_audited:
        return
    by = current_actor()
    rows = [
        {
            "changed_at": now,
            "owner": edit.owner,
            "name": edit.name,
            "action": edit.action,
            "actor": by.actor,
            "reason": (by.reason or edit.reason)[:TEXT_LENGTH],
            "old_values": edit.old,
            "new_values": edit.new,
        }
        for edit in edits
    ]
    changes.add(session, rows)


@contextmanager
def recording(
    context: Context,
    session: Session,
    row: Schedule,
    action: Action,
    *,
    now: datetime,
    reason: str = "",
) -> Iterator[None]:
    """Write the fields of ``row`` that differ after the block; nothing if the version is the same.

    A rename is written as one row under each name. A block that raises writes nothing.
    """
    if not context.settings.is_audited:
        yield
        return
    name, before = row.name, _columns(row)
    yield
    after = _columns(row)
    if after["version"] != before["version"]:
        changed = {name for name in before if not is_same(before[name], after[name])}
        old, new = _readable(_values(before, changed)), _values(after, changed)
        if row.name != name:
            old, new = {"name": name, **old}, {"name": row.name, **new}
        edits = [
            Edit(owner=row.owner, name=each, action=action, old=old, new=new, reason=reason)
            for each in dict.fromkeys((name, row.name))
        ]
        record(context, session, edits, now=now)


def created(
    context: Context,
    session: Session,
    rows: Sequence[Schedule],
    *,
    now: datetime,
) -> None:
    """Write the creation of rows."""
    edits = (
        Edit(owner=row.owner, name=row.name, action=Action.CREATE, new=_set_values(row))
        for row in rows
    )
    record(context, session, edits, now=now)


def deleted(context: Context, session: Session, rows: Sequence[Schedule], *, now: datetime) -> None:
    """Write the deletion of rows. Call it before their DELETE."""
    edits = (
        Edit(owner=row.owner, name=row.name, action=Action.DELETE, old=_readable(_set_values(row)))
        for row in rows
    )
    record(context, session, edits, now=now)


def deleted_owner(context: Context, session: Session, *, owner: str, now: datetime) -> None:
    """Write the deletion of all schedules of ``owner``. Call it before their DELETE."""
    if context.settings.is_audited:
        for rows in schedules.batches_of_owner(session, owner=owner, limit=BATCH_SIZE):
            deleted(context, session, rows, now=now)


def _columns(row: Schedule) -> dict[str, Any]:
    trigger = tuple(getattr(row, name) for name in _TRIGGER_COLUMNS)
    return {"trigger": trigger, **{name: getattr(row, name) for name in _COLUMNS}}


def _set_values(row: Schedule) -> dict[str, Any]:
    """Return the fields that have a value other than None and empty."""
    columns = _columns(row).items()
    return {name: _value(name, each) for name, each in columns if _is_set(each)}


def _is_set(value: Any) -> bool:
    # bool(value) is not enough, because False and 0 are set.
    return bool(value) or value not in (None, "", [], {})


def _values(columns: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in columns.items() if name in names}


def _value(name: str, value: Any) -> Any:
    if name == "trigger":
        return _trigger(*value)
    # The audit is read by more people than the schedule.
    return as_json(FIELDS[name].type.masked(value) if name in FIELDS else value)


def _readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with text for each value that no JSON column stores, such as NaN.

    Only manual SQL writes such values. An edit must still be able to replace or delete them.
    """
    return {name: _json_or_text(name, value) for name, value in values.items()}


def _json_or_text(name: str, value: Any) -> Any:
    try:
        return check_json(name, value)
    except InvalidArgumentError:
        return shorten(value)


def _trigger(kind: str, spec: str, timezone: str | None) -> dict[str, str | None]:
    try:
        return parse_trigger(kind, spec, timezone=timezone).to_json()
    except InvalidTriggerError:
        # A damaged row.
        return {"kind": kind, "spec": spec, "timezone": timezone}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of a column are the same for a task.

    Python's ``[1] == [True] == [1.0]`` does not hold in JSON.
    """
    if isinstance(one, (list, dict)) and isinstance(other, (list, dict)):
        return one == other and _json(one) == _json(other)
    return bool(one == other)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
