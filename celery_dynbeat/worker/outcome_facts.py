"""Store the facts for alerts of an ended run: it failed, or it was slow."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning.alerting import MIN_SLOW
from celery_dynbeat.runtime import alert_facts
from celery_dynbeat.runtime.alert_facts import NewFact

_TIMED = (Status.SUCCEEDED, Status.FAILED)


def may_be_stored(settings: Settings, *, status: Status, duration: timedelta | None) -> bool:
    """Return whether ``store`` may insert a fact, so that it needs a transaction."""
    return settings.alerts_enabled and (status == Status.FAILED or _is_long(status, duration))


def _is_long(status: Status, duration: timedelta | None) -> bool:
    return status in _TIMED and duration is not None and duration >= MIN_SLOW


def store(
    session: Session,
    settings: Settings,
    *,
    run_id: str,
    status: Status,
    at: datetime,
    duration: timedelta | None,
) -> None:
    """Store the facts of a run that has ended with ``status`` after ``duration``."""
    if status == Status.FAILED:
        alert_facts.add(session, [NewFact(AlertKind.FAILED, at, run_id=run_id)])
    if duration is None or not _is_long(status, duration):
        return
    limit = settings.alert_slow_after
    # The evaluation compares it with the schedule's own rule.
    own_rule = None if limit and duration > limit else "slow_after"
    seconds = duration.total_seconds()
    slow = NewFact(AlertKind.SLOW, at, run_id=run_id, value=seconds, own_rule=own_rule)
    alert_facts.add(session, [slow])
