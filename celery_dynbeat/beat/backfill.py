"""Past fire times to runs, a batch at a time, within one transaction for each batch.

    due backfill -> room? -> next fire times -> those without a run: recorded, pending -> publish
                     no: look again after the poll interval

- Never more than ``batch_size`` runs of a schedule's backfills are unfinished, so a queue is never
  flooded; where runs must not overlap, one is made at a time, and none beside another run.
- A run counts as unfinished until it ends or has run for max_run_time, as it does for overlap.
- What beat has not decided about yet, from the schedule's next fire time on, is left to beat.
- A paused or broken schedule waits, and one of a kind that only a newer version knows. A rule that
  cannot be evaluated sets its schedule aside, and so does a row of it that cannot be read. A
  backfill that cannot be read itself is cancelled.
- A crash leaves what a claim leaves: nothing, or pending runs that the sweep publishes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Backfill, Origin, Schedule
from celery_dynbeat.planning.backfill_planning import (
    SkippedRemainder,
    fire_times,
    remainder_of,
    select_missing,
)
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.planning.schedule_spec import ScheduleSpec, spec_from_row
from celery_dynbeat.store import backfills, due, run_rows, runs
from celery_dynbeat.store.rows import format_error
from celery_dynbeat.triggers import is_known

logger = logging.getLogger(__name__)

#: The time between two batches of one backfill.
PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What becomes runs, and what is left, by id, of the skipped rows that stood for it."""

    wanted: Sequence[datetime]
    rests: Mapping[str, SkippedRemainder]


def go_on(session: Session, *, now: datetime, settings: Settings) -> tuple[int, list[OutgoingRun]]:
    """Make the next batch of one due backfill.

    Returns how many backfills were looked at, and the new runs, which are to be published.
    """
    found = backfills.lock_oldest_due(session, now=now)
    if found is None:
        return backfills.delete_orphans(session, now=now), []
    if isinstance(found, backfills.UnreadableBackfill):
        _pass_over(session, found, now=now, settings=settings)
        return 1, []
    backfill, schedule = found
    outgoing: list[OutgoingRun] = []
    if not schedule.enabled or schedule.error is not None or not is_known(schedule.trigger_kind):
        backfill.next_run_at = now + settings.poll_interval
    else:
        try:
            outgoing = _go_on(session, backfill, schedule, now=now, settings=settings)
        except (SQLAlchemyError, ImportError):
            raise
        # Damaged text, a zone that vanished: this schedule's trouble alone.
        except Exception as error:  # noqa: BLE001
            _set_aside(schedule, error)
            backfill.next_run_at = now + settings.poll_interval
    session.flush()
    return 1, outgoing


def _go_on(
    session: Session,
    backfill: Backfill,
    schedule: Schedule,
    *,
    now: datetime,
    settings: Settings,
) -> list[OutgoingRun]:
    task_allowlist.check(settings, owner=schedule.owner, task=schedule.task)
    rule = spec_from_row(schedule, settings)
    room = _room(session, backfill, rule, now)
    if room <= 0:
        # Not PAUSE: hundreds that wait for their runs would keep beat at nothing else.
        backfill.next_run_at = now + settings.poll_interval
        return []
    window = _window(backfill, schedule, rule)
    if not window:
        _wait_or_end(backfill, schedule, rule, now)
        return []
    present = backfills.fire_times_with_run(session, schedule_id=schedule.id, instants=window)
    dealt, wanted = select_missing(window, present=present, capacity=room)
    batch = _Batch(wanted, _rests(session, schedule, rule, wanted))
    outgoing = _record(session, schedule, batch, now=now, settings=settings)
    backfill.made += len(outgoing)
    backfill.present += len(dealt) - len(outgoing)
    _advance(backfill, rule, dealt[-1], now=now, made=bool(outgoing))
    return outgoing


def _room(session: Session, backfill: Backfill, rule: ScheduleSpec, now: datetime) -> int:
    """Return how many runs may be made now."""
    alone = rule.overlap != "allow"
    most = 1 if alone else backfill.batch_size
    unfinished = backfills.count_unfinished_runs(
        session,
        schedule_id=backfill.schedule_id,
        started_after=now - rule.max_run_time,
        origin=None if alone else Origin.BACKFILL,
        limit=most,
    )
    return most - unfinished


def _window(backfill: Backfill, schedule: Schedule, rule: ScheduleSpec) -> list[datetime]:
    """Return the fire times to look at now; never more in all than were counted at the start."""
    if backfill.next_fire_at is None:
        return []
    left = backfill.total - backfill.made - backfill.present
    end = backfill.end_at
    if schedule.next_fire_at is not None and schedule.finished_at is None:
        end = min(end, schedule.next_fire_at - MICROSECOND)
    limit = min(backfill.batch_size, left)
    return fire_times(rule, start=backfill.next_fire_at, end=end, limit=limit)


def _rests(
    session: Session, schedule: Schedule, rule: ScheduleSpec, wanted: Sequence[datetime]
) -> dict[str, SkippedRemainder]:
    """Return what is left, by id, of the skipped rows that stand for ``wanted``.

    The row of history that follows a fire time is the one that may stand for it.
    """
    rests: dict[str, SkippedRemainder] = {}
    left = wanted
    while left:
        row = backfills.first_run_from(session, schedule_id=schedule.id, instant=left[0])
        if row is None:
            break
        taken = [at for at in left if at <= row.scheduled_for]
        left = left[len(taken) :]
        rest = remainder_of(rule.trigger, row, taken) if row.status == Status.SKIPPED else None
        if rest is not None:
            rests[row.id] = rest
    return rests


def _record(
    session: Session,
    schedule: Schedule,
    batch: _Batch,
    *,
    now: datetime,
    settings: Settings,
) -> list[OutgoingRun]:
    for run_id, rest in batch.rests.items():
        backfills.shrink_skipped(session, run_id=run_id, fire_count=rest.newer)
    new = [
        run_rows.new_outgoing_run(schedule, at, now=now, settings=settings) for at in batch.wanted
    ]
    overdue_at = now + settings.dispatch_timeout
    pending = [
        run_rows.pending_row(run, now=now, overdue_at=overdue_at, origin=Origin.BACKFILL)
        for run in new
    ]
    added = runs.add(session, pending)
    for rest in batch.rests.values():
        if rest.older is not None:
            _keep(session, schedule, rest.older, now)
    return [run for run in new if run.run_id in added]


def _keep(session: Session, schedule: Schedule, skip: Skip, now: datetime) -> None:
    at = skip.newest
    # Taken where the count is that of another rule; the record has to say it all the same.
    while not runs.add(
        session, [run_rows.skipped_row(schedule, replace(skip, newest=at), now=now)]
    ):
        at -= MICROSECOND


def _advance(
    backfill: Backfill, rule: ScheduleSpec, reached: datetime, *, now: datetime, made: bool
) -> None:
    following = fire_times(rule, start=reached + MICROSECOND, end=backfill.end_at, limit=1)
    if not following or backfill.made + backfill.present >= backfill.total:
        _end(backfill, now)
        return
    backfill.next_fire_at = following[0]
    # Nothing was made where all had runs: nothing to wait for.
    backfill.next_run_at = now + PAUSE if made else now


def _wait_or_end(backfill: Backfill, schedule: Schedule, rule: ScheduleSpec, now: datetime) -> None:
    start = backfill.next_fire_at
    if start is None or not fire_times(rule, start=start, end=backfill.end_at, limit=1):
        _end(backfill, now)
    else:
        # The rest is beat's own to decide about, as soon as it is due.
        backfill.next_run_at = max(now + PAUSE, schedule.next_run_at or now)


def _end(backfill: Backfill, now: datetime) -> None:
    backfill.next_fire_at = backfill.next_run_at = None
    backfill.finished_at = now


def _set_aside(schedule: Schedule, error: Exception) -> None:
    logger.error(
        "schedule %r of owner %r is set aside: %s",
        schedule.name,
        schedule.owner,
        error,
        exc_info=error,
        extra={"event": Event.SCHEDULE_QUARANTINED, "schedule_id": schedule.id},
    )
    schedule.next_run_at = None
    schedule.error = format_error(error)


def _pass_over(
    session: Session, found: backfills.UnreadableBackfill, *, now: datetime, settings: Settings
) -> None:
    """Set aside what cannot be read; mending the schedule lets its backfill go on."""
    if found.schedule is not None:
        logger.error(
            "schedule %s is set aside: %s",
            found.schedule.id,
            found.schedule,
            extra={"event": Event.SCHEDULE_QUARANTINED, "schedule_id": found.schedule.id},
        )
        due.quarantine_unreadable(session, [found.schedule])
    if found.backfill is None:
        until = now + settings.poll_interval
        backfills.defer(session, backfill_id=found.backfill_id, until=until)
        return
    logger.error(
        "backfill %s is cancelled: %s",
        found.backfill_id,
        found.backfill,
        extra={"event": Event.SCHEDULE_QUARANTINED, "backfill_id": found.backfill_id},
    )
    backfills.cancel_unread(session, backfill_id=found.backfill_id, now=now)
