"""Celery's own ``beat_schedule``, as schedules of the application itself (owner "").

Its entries follow the configuration at each start, also when they are removed, and can be paused
like any other. An entry that cannot be said in a row is refused with its name and the cure; the
others run.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule
from sqlalchemy.orm import Session

from celery_dynbeat.celery_schedules import trigger_of
from celery_dynbeat.client import Context, checks, edits
from celery_dynbeat.errors import DynbeatError, InvalidScheduleError, ScheduleExistsError
from celery_dynbeat.events import Event
from celery_dynbeat.store import schedules
from celery_dynbeat.triggers import Trigger

logger = logging.getLogger(__name__)

MANAGED_BY = "config"
_KNOWN_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})


def sync(context: Context) -> None:
    """Make the application's managed schedules those of its configuration, in one transaction."""
    entries = {name: entry for name, entry in _entries(context.app).items() if entry is not None}
    converted: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        try:
            converted[name] = fields_of(entry, app=context.app)
        except (DynbeatError, ValueError, TypeError, KeyError) as error:
            _refused(name, error)
    context.write(None, lambda session: _sync(context, session, converted, set(entries)))


def _sync(
    context: Context,
    session: Session,
    converted: Mapping[str, dict[str, Any]],
    configured: set[str],
) -> None:
    now = context.clock.now()
    gone = set(schedules.managed(session, managed_by=MANAGED_BY)) - configured
    for name in gone:
        row = schedules.lock(session, owner="", name=name)
        if row is not None:
            edits.delete(session, row, now=now)
    kept = 0
    for name, given in converted.items():
        try:
            _upsert_beside_others(context, session, name, given)
            kept += 1
        except DynbeatError as error:
            _refused(name, error)
    logger.info(
        "entries of beat_schedule: %s kept, %s removed",
        kept,
        len(gone),
        extra={"event": Event.CONFIG_SYNCED},
    )


def _upsert_beside_others(
    context: Context,
    session: Session,
    name: str,
    given: Mapping[str, Any],
) -> None:
    try:
        with session.begin_nested():
            _upsert(context, session, name, given)
    except ScheduleExistsError:
        # Another beat that started at the same moment was faster: its row is there by now.
        with session.begin_nested():
            _upsert(context, session, name, given)


def _upsert(context: Context, session: Session, name: str, given: Mapping[str, Any]) -> None:
    checks.name("name", name)
    now = context.clock.now()
    row = schedules.lock(session, owner="", name=name)
    if row is None:
        rest = {key: value for key, value in given.items() if key not in {"task", "trigger"}}
        task, trigger = given["task"], given["trigger"]
        new = edits.new_row(
            context,
            owner="",
            name=name,
            task=task,
            trigger=trigger,
            given=rest,
            now=now,
        )
        new.managed_by = MANAGED_BY
        schedules.add(session, edits.insert_values(new))
        return
    if row.managed_by != MANAGED_BY:
        msg = "a schedule of that name was made through the API; rename one of the two"
        raise InvalidScheduleError(msg, field="name")
    edits.change(context, session, row, given, now=now)


def _refused(name: str, error: Exception) -> None:
    logger.error(
        "beat_schedule[%r] is refused, the other entries run: %s",
        name,
        error,
        extra={"event": Event.CONFIG_REFUSED},
    )


def _entries(app: Celery) -> dict[str, Any]:
    entries: dict[str, Any] = dict(app.conf.beat_schedule or {})
    # As Celery's own scheduler does: results that do not expire by themselves are cleaned up.
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        entries.setdefault(
            "celery.backend_cleanup",
            {
                "task": "celery.backend_cleanup",
                "schedule": crontab("0", "4", "*"),
                "options": {"expires": 12 * 3600},
            },
        )
    return entries


def fields_of(entry: Mapping[str, Any], *, app: Celery) -> dict[str, Any]:
    """Return what an entry says, as the API calls it. Raises InvalidScheduleError."""
    if not isinstance(entry, Mapping):
        raise checks.refuse("entry", entry, "must be a dict with 'task' and 'schedule'")
    unknown = sorted(entry.keys() - _KNOWN_KEYS)
    if unknown:
        rule = f"unknown key; known are {', '.join(sorted(_KNOWN_KEYS))}"
        raise checks.refuse(unknown[0], entry[unknown[0]], rule)
    for key in ("task", "schedule"):
        if key not in entry:
            raise checks.refuse("entry", dict(entry), f"has no {key!r}")
    options = dict(entry.get("options") or {})
    expires = options.pop("expires", None)
    if entry.get("relative"):
        rule = "rounded intervals cannot be kept; give the schedule an anchor or a crontab"
        raise checks.refuse("relative", entry["relative"], rule)
    return {
        "task": entry["task"],
        "trigger": _trigger(entry["schedule"], app=app),
        "args": entry.get("args") or (),
        "kwargs": entry.get("kwargs") or {},
        "options": options,
        "expires_after": _expires_after(expires),
    }


def _trigger(given: Any, *, app: Celery) -> Trigger:
    # Celery's beat does this too: it makes a crontab one of the application's, in its zone.
    spoken = maybe_schedule(given, app=app) if isinstance(given, BaseSchedule) else given
    return trigger_of(spoken, timezone=str(app.timezone))


def _expires_after(expires: Any) -> Any:
    if expires is None or isinstance(expires, (int, float, timedelta)):
        return expires
    rule = "an instant would expire all later runs; give seconds or a timedelta"
    raise checks.refuse("options['expires']", expires, rule)
