"""Store that runs of a claim are late, for their alerts: at most one INSERT in a claim.

A run is late by the time from when its schedule was due to its claim. Jitter does not count, and
neither does the time of a hold. After an outage a claim stores the MAX_FACTS latest runs. The other
schedules are late, too, but open no alert unless the next runs are late as well.
"""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning.alerting import MIN_LATE
from celery_dynbeat.runtime import alert_facts

#: Facts that one claim stores.
MAX_FACTS = 100


@dataclass(frozen=True, slots=True)
class DueRun:
    """The oldest run of a schedule in a claim, and when the schedule was due.

    ``run_id`` None: the run is not made yet, because its queue is refused.
    ``has_own_rule``: the evaluation compares it with the schedule's own ``late_after``.
    """

    run_id: str | None
    schedule_id: int
    due_at: datetime
    has_own_rule: bool


def store(
    session: Session,
    due_runs: Iterable[DueRun],
    *,
    new: Collection[str],
    now: datetime,
    held_until: datetime | None,
    settings: Settings,
) -> None:
    """Store the latest of ``due_runs`` whose ids are ``new``. A hold ended at ``held_until``."""
    limit = settings.alert_late_after
    late = [
        (lateness, each.schedule_id, each.run_id)
        for each in due_runs
        if (lateness := now - max(each.due_at, held_until or each.due_at)) > MIN_LATE
        and (each.has_own_rule or _exceeds(lateness, limit))
        and (each.run_id is None or each.run_id in new)
    ]
    facts = [
        alert_facts.fact(
            AlertKind.LATE, schedule_id, at=now, run_id=run_id, value=lateness.total_seconds()
        )
        for lateness, schedule_id, run_id in heapq.nlargest(MAX_FACTS, late)
    ]
    alert_facts.add(session, facts)


def _exceeds(lateness: timedelta, limit: timedelta | None) -> bool:
    return limit is not None and lateness > limit
