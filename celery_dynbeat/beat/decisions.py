"""Decide what beat writes for a locked row, and which of its runs are sent. Without a database.

A row that cannot be planned is quarantined. The other rows are not affected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from celery_dynbeat.beat import outgoing_runs
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.beat.holding import quarantine_of
from celery_dynbeat.beat.refused import BATCH_SIZE, LeftToNewerError, UnknownZone
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    UnknownZoneError,
    UnusableCalendarError,
    concerns_process,
)
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Wait
from celery_dynbeat.common.text import MAX_COUNT
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    SpecColumns,
    as_skips,
    calendars_behind,
    skips_in,
    spec_from_row,
    with_search_budget,
)
from celery_dynbeat.planning.plan import (
    OutgoingRun,
    Plan,
    due_at,
    moved_to,
    plan,
    replanned,
    skip_missed,
)
from celery_dynbeat.store import runs
from celery_dynbeat.store.schedules.due import DueSchedule
from celery_dynbeat.telemetry import events
from celery_dynbeat.triggers.wrappers import unwrapped

#: The maximum number of fire times of one schedule that one pass sends with catch_up="all".
CATCH_UP_BATCH = 100
#: Returns until when a new run is deferred because its queue is refused, or None to record it now.
OutageDelay = Callable[[OutgoingRun], datetime | None]


class Decision(NamedTuple):
    """What a transaction writes for one schedule, and which of its runs are sent.

    If ``is_change`` is false, the row already has these values.

    ``change`` has the columns of its row. ``records`` are new rows of history. ``replaces`` means
    that the new run cancels the previous runs.
    """

    owner: str
    change: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]] = ()
    outgoing: Sequence[OutgoingRun] = ()
    replaces: bool = False
    quarantined: events.ScheduleQuarantined | None = None
    is_change: bool = True


class OverlapState(NamedTuple):
    """The numbers of runs that count for overlap and of buffered runs, by schedule id.

    ``queued_at`` is since when the oldest run waits for a place that a new run replaces.
    """

    unfinished: Mapping[int, int] = MappingProxyType({})
    buffered: Mapping[int, int] = MappingProxyType({})
    queued_at: Mapping[int, datetime] = MappingProxyType({})


_NO_OVERLAP = OverlapState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """Decides at ``now``, with the ``calendars`` of the rows.

    For due rows, ``overlap`` has the runs of the schedules whose policy needs them.
    """

    now: datetime
    settings: Settings
    calendars: Calendars
    overlap: OverlapState = _NO_OVERLAP
    outage_delay: OutageDelay | None = None

    def due(self, row: DueSchedule, limit: int) -> Decision:
        """Decide which fire times of a due row are sent, ``limit`` at most, or skipped."""
        outgoing_runs.check_payload(row)
        if (fire_at := row.next_fire_at) is None:
            msg = "next_fire_at must not be NULL while next_run_at is set"
            raise TypeError(msg)
        spec = self._spec_of(row)
        if self.outage_delay is not None:
            until = self.outage_delay(
                outgoing_runs.new_run(row, fire_at, now=self.now, settings=self.settings)
            )
            if until is not None:
                return Decision(row.owner, {"id": row.id, "next_run_at": until})
        self.settings.owner_limits.check_task(owner=row.owner, task=row.task)
        planned = plan(
            spec,
            fire_at=fire_at,
            run_count=row.run_count,
            now=self.now,
            limit=limit,
            # ``get`` is faster than a subscript, for which a Counter computes a missing count in
            # Python.
            unfinished=self.overlap.unfinished.get(row.id, 0),
            buffered=self.overlap.buffered.get(row.id, 0),
            last_run_at=row.last_run_at,
        )
        new = [
            outgoing_runs.new_run(
                row, at, now=self.now, settings=self.settings, next_fire_at=planned.next_fire_at
            )
            for at in planned.runs
        ]
        if planned.replaces and (queued_at := self.overlap.queued_at.get(row.id)):
            # The new run takes the place of the old one in the queue. At its end, a run that is
            # replaced again and again would never start.
            new = [run._replace(run_id=new_run_id(queued_at)) for run in new]
        # A buffered run is recorded like the others. The sweep publishes it when it no longer has
        # to wait.
        overdue_at = self.now + self.settings.dispatch_timeout
        outgoing, buffered = new[: len(planned.send)], new[len(planned.send) :]
        row_of = partial(outgoing_runs.pending_row, now=self.now, overdue_at=overdue_at)
        records = [row_of(run) for run in outgoing]
        records += [row_of(run, waits_for=Wait.PREVIOUS) for run in buffered]
        records += [runs.skipped_row(row, skip, now=self.now) for skip in planned.skips]
        decision = Decision(
            owner=row.owner,
            change=self._change(row, spec, planned),
            records=records,
            outgoing=outgoing,
            replaces=planned.replaces,
        )
        if planned.next_fire_at is not None or not spec.calendars:
            return decision
        progress = row._replace(
            run_count=row.run_count + len(planned.runs),
            last_run_at=planned.runs[-1] if planned.runs else row.last_run_at,
        )
        left = moved_to(spec, progress, None, now=self.now)
        return self._blocked(decision, row, spec, left.fire_at) if left.is_blocked else decision

    def again(self, row: DueSchedule, *, since: datetime) -> Decision:
        """Decide the next run, with the first fire time after ``since``.

        A row without one is unplanned, or in quarantine because of its calendars. The fire times
        that it missed until ``since`` are recorded as skipped.
        """
        has_no_run = row.next_run_at is None
        if has_no_run:
            outgoing_runs.check_payload(row)
            self.settings.owner_limits.check_task(owner=row.owner, task=row.task)
        spec = self._spec_of(row)
        planned = replanned(spec, row, since=since, now=self.now)
        change: dict[str, Any] = {
            "id": row.id,
            "next_fire_at": planned.fire_at,
            "next_run_at": planned.run_at,
            "finished_at": self.now if planned.fire_at is None else None,
            "error": None,
            "trigger_kind": unwrapped(spec.trigger).kind,
        }
        if has_no_run:
            decision = Decision(row.owner, change, self._missed_records(row, spec, since=since))
        else:
            is_moved = planned.run_at is None or planned.fire_at != row.next_fire_at
            # A quiet day, or a window, moves only the instant at which the schedule is due.
            is_delayed = not row.was_held and planned.run_at != row.next_run_at
            decision = Decision(row.owner, change, is_change=is_moved or is_delayed)
        if planned.is_blocked:
            return self._blocked(decision, row, spec, planned.fire_at)
        return decision

    def _spec_of(self, row: DueSchedule) -> ScheduleSpec:
        # SpecColumns has attributes that can be set, unlike the fields of a named tuple.
        columns = cast("SpecColumns", row)
        return with_search_budget(spec_from_row(columns, self.settings, self.calendars))

    def _change(self, row: DueSchedule, spec: ScheduleSpec, planned: Plan) -> dict[str, Any]:
        fire_at, made = planned.next_fire_at, planned.runs
        change: dict[str, Any] = {
            "id": row.id,
            "next_fire_at": fire_at,
            "next_run_at": None if fire_at is None else due_at(spec, fire_at, now=self.now),
            "run_count": min(row.run_count + len(made), MAX_COUNT),
            "finished_at": self.now if fire_at is None else None,
        }
        if made:
            change["last_run_at"] = made[-1]
        if planned.passed:
            skipped = skips_in(row.skips)
            change["skips"] = as_skips({at: skipped[at] for at in skipped.keys() - planned.passed})
        return change

    def _blocked(
        self, decision: Decision, row: DueSchedule, spec: ScheduleSpec, fire_at: datetime | None
    ) -> Decision:
        """Return ``decision`` with a quarantine, because the calendars alone end the schedule.

        ``fire_at`` is the first fire time that they have taken. The plan that ends the quarantine
        records the fire times from this one on as missed.
        """
        quarantined = quarantine_of(row, UnusableCalendarError(spec.calendars), now=self.now)
        blocked = {"next_fire_at": fire_at, "finished_at": None, "error": quarantined.error}
        return decision._replace(change={**decision.change, **blocked}, quarantined=quarantined)

    def _missed_records(
        self, row: DueSchedule, spec: ScheduleSpec, *, since: datetime
    ) -> Sequence[Mapping[str, Any]]:
        """Return the records of the fire times that passed while the row was not in the index.

        Such a row is in the index again because manual SQL put it there, or because its pause has
        ended. It still has its old next fire time.
        """
        if row.next_fire_at is None:
            return ()
        reason = "missed: the schedule was paused or quarantined"
        missed = skip_missed(spec, fire_at=row.next_fire_at, now=since, reason=reason)
        return [runs.skipped_row(row, skip, now=self.now) for skip in missed]


#: Decides about a row, of which at most a number of runs are sent.
Decide = Callable[[DueSchedule, int], Decision]


def decide_rows(
    rows: Sequence[DueSchedule],
    decide: Decide,
    *,
    now: datetime,
    planning_time: PlanningTime,
    batch_size: int = BATCH_SIZE,
) -> tuple[list[Decision], bool]:
    """Decide about the rows that fit into the batch and its planning time.

    The second result is true if the time was too short for a row of an owner that is not costly.
    Raises LeftToNewerError if this process does not know the time zone of a row.
    """
    decisions: list[Decision] = []
    sending = 0
    is_out_of_time = False
    unknown: list[UnknownZone] = []
    for row in rows:
        if sending >= batch_size:
            # There is a backlog. The other rows stay due for the next pass.
            break
        if not planning_time.has_time_for(row.owner):
            # If only rows of costly owners are left, they must not delay backfills and pruning.
            is_out_of_time = is_out_of_time or not planning_time.is_costly(row.owner)
            continue
        limit = min(batch_size - sending, CATCH_UP_BATCH)
        try:
            decision = _decide_or_quarantine(decide, row, limit, now=now)
        except UnknownZoneError as error:
            unknown.append(UnknownZone(row, error))
            continue
        decisions.append(decision)
        sending += len(decision.outgoing)
        planning_time.add_row(row.owner)
    if unknown:
        raise LeftToNewerError(unknown)
    return decisions, is_out_of_time


def _decide_or_quarantine(
    decide: Decide, row: DueSchedule, limit: int, *, now: datetime
) -> Decision:
    """Decide about a row. Raises UnknownZoneError, and the error of a process that is at fault."""
    try:
        decision = decide(row, limit)
    except UnknownZoneError:
        # The tz database of a newer beat may have the zone.
        raise
    # Invalid text, a bug in a trigger: only this row is affected.
    except Exception as error:
        if concerns_process(error):
            raise
        if isinstance(error, InvalidTriggerError) and (names := calendars_behind(row, error)):
            # The next edit of a calendar may end the quarantine.
            error = UnusableCalendarError.from_trigger_error(names, error)
        quarantined = quarantine_of(row, error, now=now)
        change = {"id": row.id, "next_run_at": None, "error": quarantined.error}
        decision = Decision(row.owner, change, quarantined=quarantined)
    if not row.was_held:
        return decision
    return decision._replace(change={**decision.change, "held_at": None})
