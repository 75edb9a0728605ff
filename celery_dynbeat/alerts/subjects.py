"""The schedules of alerts: their effective rules, and their last runs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_rules import AlertRules, EffectiveRules
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.settings import DEFAULT_TARGET, Settings
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning.alerting import RunState, ScheduleState
from celery_dynbeat.store.alerts import alerts
from celery_dynbeat.store.runs import recent_runs

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet

logger = logging.getLogger(__name__)

#: The number of rows of history that a decision reads for each schedule.
RUNS_PER_SCHEDULE = 10
#: Schedules whose bad rules were logged. Beyond it, one may be logged again.
MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Subject:
    """A schedule with the alert rules, the jitter and the quiet hours that apply to it."""

    row: Row
    rules: EffectiveRules
    jitter: timedelta
    quiet: "Quiet | None" = None

    def existed_at(self, instant: datetime, *, now: datetime) -> bool:
        """Return whether what happened at an instant is about this schedule.

        SQLite gives the id of a deleted schedule to the next schedule. A schedule that was created
        in the future says that the clock was set back, and then instants do not tell.
        """
        created_at: datetime = self.row.created_at
        return created_at <= instant or created_at > now


class Subjects:
    """Reads schedules for the evaluation, and logs unusable rules once per schedule."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._logged: dict[int, None] = {}
        #: For how long a recovery must last before a message reports it.
        self.damping = settings.alert_interval
        #: Whether owners get notices, and how long these wait.
        self.has_recipient = settings.recipient is not None
        self.notice_delay = settings.alert_delay
        self.recovery_delay = max(settings.alert_delay, settings.alert_interval)

    def read(self, session: Session, schedule_ids: Sequence[int]) -> Mapping[int, Subject]:
        """Return the schedules that exist, by id. Their rows are not locked."""
        rows = alerts.subjects(session, sorted(set(schedule_ids)))
        return {key: self._subject(row) for key, row in rows.items()}

    def target(self, subject: Subject) -> str:
        """Return the name of the target of a schedule's alerts."""
        to, known = subject.rules.to, self._settings.alert_urls
        if not known or to in known:
            return to
        self._log_once(subject.row, f"there is no target {to!r} in dynbeat_alert_urls")
        return DEFAULT_TARGET

    def _subject(self, row: Row) -> Subject:
        return Subject(row, self._rules(row), self._jitter(row), _quiet(row))

    def _jitter(self, row: Row) -> timedelta:
        return self._settings.jitter if row.jitter is None else timedelta(seconds=row.jitter)

    def _rules(self, row: Row) -> EffectiveRules:
        try:
            own = AlertRules() if row.alerts is None else AlertRules.from_json(row.alerts)
        except InvalidScheduleError as error:
            # Only manual SQL or a newer version writes such rules.
            self._log_once(row, str(error))
            own = AlertRules()
        return own.effective(self._settings)

    def _log_once(self, row: Row, reason: str) -> None:
        if row.id in self._logged:
            return
        if len(self._logged) >= MAX_REMEMBERED:
            self._logged.pop(next(iter(self._logged)))
        self._logged[row.id] = None
        logger.warning(
            "alert rules of schedule %r of owner %r are not used: %s",
            row.name,
            row.owner,
            reason,
            extra={
                "event": Event.ALERT_RULES_INVALID,
                "owner": row.owner,
                "schedule": row.name,
                "schedule_id": row.id,
            },
        )


def _quiet(row: Row) -> "Quiet | None":
    if row.quiet_hours is None:
        return None
    # A late import: few owners have quiet hours.
    from celery_dynbeat.planning.quiet_hours import quiet_of  # noqa: PLC0415

    try:
        return quiet_of(row.quiet_hours)
    except InvalidTriggerError:
        # Beat quarantines the schedule when it is due.
        return None


def last_runs(
    session: Session, schedule_ids: Sequence[int], *, now: datetime, limit: int = RUNS_PER_SCHEDULE
) -> Mapping[int, Sequence[Row]]:
    """Return the last runs of each schedule."""
    found: dict[int, list[Row]] = {key: [] for key in schedule_ids}
    for row in recent_runs.read(session, schedule_ids=schedule_ids, until=now, limit=limit):
        found[row.schedule_id].append(row)
    return found


def schedule_state(subject: Subject, runs: Sequence[Row]) -> ScheduleState:
    """Return the state of a schedule and its last runs that the pure rules need."""
    row = subject.row
    return ScheduleState(
        enabled=bool(row.enabled),
        error=row.error,
        failing_since=row.failing_since,
        next_run_at=row.next_run_at,
        jitter=subject.jitter,
        quiet=subject.quiet,
        runs=[
            RunState(
                status=run.status,
                scheduled_for=run.scheduled_for,
                created_at=created_at(run.id),
                started_at=run.started_at,
                finished_at=run.finished_at,
            )
            for run in runs
        ],
    )
