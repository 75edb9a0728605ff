"""The content of a row of the page "Schedules". PURE."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import UNFINISHED, State, Status, was_started
from celery_dynbeat.common.text import cut, escape, format_duration
from celery_dynbeat.flower.base import selection
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.charts import StripBar, run_strip
from celery_dynbeat.insights.statistics.recent_runs import RecentRun

#: Runs of a strip.
RUNS = 30
_TEXT_LENGTH = 100
_FAILURES = frozenset({Status.FAILED, Status.LOST})
#: Such a run says nothing about the task, or that its task had nothing to do (SkipRun).
_NO_RESULT = frozenset({Status.SKIPPED, Status.REVOKED, Status.EXPIRED})
_WORKING = frozenset({State.ACTIVE, State.FAILING})


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The newest run.

    A skipped fire time is not a run, but a run that its task skipped is a run.
    """

    at: datetime
    status: str
    #: The failed and lost runs since the last success, among the runs of the strip.
    failures: str
    #: The first line of the error of the last ended run, or None after a success.
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule and what its row shows of it."""

    info: ScheduleInfo
    rule: str
    #: The text of the rule.
    text: str
    state: str
    #: Whether a hold delays a due run.
    waits: bool
    #: SVG.
    strip: str
    last: LastRun | None
    zone: ZoneInfo
    #: The value of the check box.
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that decide about the state of a row in addition to the schedule."""

    now: datetime
    #: A schedule with an earlier next_run_at is overdue.
    overdue_before: datetime


def schedule_row(
    info: ScheduleInfo,
    runs: Sequence[RecentRun],
    *,
    situation: Situation,
    zone: ZoneInfo,
    link: Callable[[str], str],
) -> ScheduleRow:
    """Return the row of a schedule. ``runs`` are its last ones, the oldest first.

    ``link`` returns the URL of the page of a run.
    """
    state = state_of(info, situation)
    is_due = info.next_run_at is None or info.next_run_at <= situation.now
    label = f"Last {len(runs)} runs of {escape(info.name)}" if runs else "No runs"
    return ScheduleRow(
        info=info,
        rule="Damaged rule" if info.trigger is None else info.trigger.describe(str(zone)),
        text=cut(info.rule or "", _TEXT_LENGTH),
        state=state,
        waits=state == State.HELD and is_due,
        strip=run_strip([_bar(run, zone, link) for run in runs], slots=RUNS, label=label),
        last=last_run(runs),
        zone=zone,
        key=selection.encode(info.owner, info.name),
    )


def state_of(info: ScheduleInfo, situation: Situation) -> str:
    """Return the state that the chip shows: also overdue, which depends on the time."""
    if info.state not in _WORKING:
        return info.state
    if info.next_run_at is not None and info.next_run_at < situation.overdue_before:
        return State.OVERDUE
    return info.state


def last_run(runs: Sequence[RecentRun]) -> LastRun | None:
    """Return the newest run, or None if there are only skipped fire times."""
    newest = next((run for run in reversed(runs) if was_started(run.status, run.attempt)), None)
    if newest is None:
        return None
    ignored = {*_NO_RESULT, *UNFINISHED}
    ended = [run for run in reversed(runs) if run.status not in ignored]
    failed = list(takewhile(lambda run: run.status in _FAILURES, ended))
    error = next((run.error.partition("\n")[0] for run in failed[:1] if run.error), None)
    is_all = len(failed) == len(ended) and len(runs) == RUNS
    return LastRun(
        at=created_at(newest.id),
        status=newest.status,
        # One failure is in the status.
        failures="" if len(failed) < 2 else f"x{len(failed)}{'+' if is_all else ''}",  # noqa: PLR2004
        error=error,
    )


def _bar(run: RecentRun, zone: ZoneInfo, link: Callable[[str], str]) -> StripBar:
    return StripBar(
        status=run.status,
        duration_seconds=None if run.duration is None else run.duration.total_seconds(),
        title=_title(run, zone),
        href=link(run.id),
    )


def _title(run: RecentRun, zone: ZoneInfo) -> str:
    times: Mapping[str, timedelta | None] = {
        "lag": run.lag,
        "queued": run.queue_time,
        "duration": run.duration,
    }
    parts = [local_time(run.scheduled_for, zone), run.status]
    parts += [f"{name} {format_duration(value)}" for name, value in times.items() if value]
    if run.fire_count > 1:
        parts.append(f"represents {run.fire_count} fire times")
    if run.error:
        parts.append(escape(run.error.partition("\n")[0]))
    return ", ".join(parts)
