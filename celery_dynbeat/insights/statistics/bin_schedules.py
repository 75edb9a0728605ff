"""The schedules behind one bar of a histogram."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.lists.planned_ticks import follow
from celery_dynbeat.api.results import Info
from celery_dynbeat.insights.statistics.histogram import counts_by_end
from celery_dynbeat.insights.statistics.timeline import check_window, past_window
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import planned_runs, window_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSchedule(Info):
    """A schedule with its numbers of past, failed and planned runs in the bin."""

    owner: str
    name: str
    task: str
    past: int = 0
    failed: int = 0
    planned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSchedules(Info):
    """The schedules with the most runs in a bin, ``more`` if there can be others."""

    schedules: Sequence[BinSchedule]
    more: bool


def schedules_of_bin(
    context: Context,
    *,
    start_at: datetime,
    end_at: datetime,
    limit: int = 50,
    owner: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    now: datetime | None = None,
    session: Session | None = None,
) -> BinSchedules:
    """Return up to ``limit`` schedules with runs in [start_at, end_at), those with most runs first.

    The numbers agree with ``timeline`` for the same filter. Raises InvalidScheduleError.
    """
    checks.check_limit("limit", limit)
    start, end = check_window("start_at", start_at, "end_at", end_at)
    matching = queries.filter_of(context, owner=owner, task=task, tag=tag)
    at = context.now(session) if now is None else now

    def work(session: Session) -> BinSchedules:
        past, is_cut = _past(session, matching, start, end, now=at, limit=limit)
        planned, is_more = _planned(context, session, matching, start, end, now=at, limit=limit)
        found = [*_merged(past, planned).values()]
        found.sort(key=lambda each: (-each.past - each.planned, each.owner, each.name))
        more = is_cut or is_more or len(found) > limit
        return BinSchedules(schedules=found[:limit], more=more)

    return context.read_many(session, work)


def _past(
    session: Session,
    matching: ScheduleFilter,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    limit: int,
) -> tuple[Sequence[Any], bool]:
    window = past_window(session, matching, start, end, now=now, by_end=counts_by_end(matching))
    if window is None:
        return [], False
    rows = window_runs.counts_by_schedule(session, window, limit=limit + 1)
    return rows, window.is_cut or len(rows) > limit


def _planned(
    context: Context,
    session: Session,
    matching: ScheduleFilter,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    limit: int,
) -> tuple[Sequence[Any], bool]:
    """Return the row of a schedule for each of its upcoming runs."""
    if end <= now:
        return [], False
    followed = follow(context, session, matching, now=now, since=start, until=end)
    # Due schedules run now.
    since = None if start <= now else start
    others = planned_runs.next_runs(
        session,
        matching=matching,
        since=since,
        until=end,
        limit=limit,
        except_for=followed.schedules,
    )
    is_more = followed.ticks.is_cut or followed.schedules.is_more or others.is_more
    return [*(row for _, row in followed.ticks.ticks), *others.rows], is_more


def _merged(past: Sequence[Any], planned: Sequence[Any]) -> dict[tuple[str, str], BinSchedule]:
    found: dict[tuple[str, str], BinSchedule] = {}
    for row in past:
        numbers = {"past": int(row.runs), "failed": int(row.failed or 0)}
        found[row.owner, row.name] = BinSchedule(
            owner=row.owner, name=row.name, task=row.task, **numbers
        )
    for row in planned:
        key = (row.owner, row.name)
        seen = found.get(key) or BinSchedule(owner=row.owner, name=row.name, task=row.task)
        found[key] = replace(seen, planned=seen.planned + 1)
    return found
