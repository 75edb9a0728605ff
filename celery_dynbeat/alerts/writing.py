"""Write that alerts open and end, and report it in signals after the commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind, Report
from celery_dynbeat.db.statements import Row
from celery_dynbeat.process.left_out import NamedRow
from celery_dynbeat.store import alerts
from celery_dynbeat.telemetry import emit_on_commit, events


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCause:
    """Why an alert of a schedule is open, since when, and the run that shows it."""

    subject: Row
    since: datetime
    text: str
    run_id: str | None = None


def named(alert: Row) -> NamedRow:
    """Return the schedule of an alert, for ``LeftOut``."""
    return SimpleNamespace(id=alert.schedule_id, owner=alert.owner, name=alert.name)


def write_opened(session: Session, *, kind: AlertKind, found: Mapping[int, AlertCause]) -> None:
    """Open the alerts of a kind that are not open, by the id of the schedule."""
    alerts.lock(session)
    known = alerts.lock_of(session, sorted(found), kind=kind)
    new, again = [], []
    for key, cause in found.items():
        row = known.get(key)
        if row is None:
            new.append(_opened(kind, cause))
        elif row.recovered_at is not None:
            again.append({"id": row.id, **_opened(kind, cause, before=row)})
        else:
            continue
        emit_on_commit(session, _event(events.AlertOpened, new[-1] if row is None else again[-1]))
    alerts.insert(session, new)
    alerts.update_each(session, again)


def _opened(kind: AlertKind, cause: AlertCause, *, before: Row | None = None) -> Mapping[str, Any]:
    """Return the columns of an alert that opens, perhaps again."""
    # No message has said that the earlier alert ended, so this one continues it.
    continues = before is not None and before.unreported == Report.RECOVERED
    subject = cause.subject
    return {
        "schedule_id": subject.id,
        "owner": subject.owner,
        "name": subject.name,
        "task": subject.task,
        "kind": kind.value,
        "opened_at": cause.since,
        "cause": cause.text,
        "run_id": cause.run_id,
        "recovered_at": None,
        "unreported": None if continues else Report.OPENED.value,
    }


def write_ended(session: Session, rows: Sequence[tuple[Row, bool]], *, now: datetime) -> None:
    """Write that locked alerts have ended. The flag of each says whether a message reports it.

    An opening that no message has reported yet is still reported, in one message with its end.
    """
    values = []
    for row, is_reported in rows:
        left = row.unreported
        if left is None and is_reported:
            left = Report.RECOVERED.value
        values.append({"id": row.id, "recovered_at": now, "unreported": left})
        emit_on_commit(session, _event(events.AlertRecovered, row._mapping))  # noqa: SLF001
    alerts.update_each(session, values)


def _event(event_type: type[events.AlertOpened], row: Mapping[str, Any]) -> events.AlertOpened:
    return event_type(
        kind=row["kind"],
        schedule_id=row["schedule_id"],
        owner=row["owner"],
        schedule=row["name"],
        task=row["task"],
        opened_at=row["opened_at"],
        run_id=row["run_id"],
        cause=row["cause"],
    )
