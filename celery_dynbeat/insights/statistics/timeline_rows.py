"""The rows of a timeline: the runs of a few schedules by owner, task or tag."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy.orm import Session

from celery_dynbeat.api.results import Info
from celery_dynbeat.store.schedules import tags_of

GroupBy: TypeAlias = Literal["owner", "task", "tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKey(Info):
    """The owner and the name of a schedule."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun(Info):
    """A run. ``scheduled_for`` of a rerun is the fire time that it repeats."""

    id: str
    owner: str
    name: str
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureRun(Info):
    """An upcoming run. ``at`` is its fire time with its offset, or now if it is due."""

    at: datetime
    owner: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow(Info):
    """The runs of one owner, task or tag, oldest first; ``label`` "" without a tag."""

    label: str
    schedules: Sequence[ScheduleKey]
    bars: Sequence[PastRun]
    ticks: Sequence[FutureRun]


def rows_of(
    session: Session,
    bars: Sequence[Any],
    ticks: Sequence[tuple[datetime, Any]],
    group_by: GroupBy,
) -> Sequence[TimelineRow]:
    """Return the rows for runs in any order, and for instants with the row of their schedule."""
    tags: Mapping[int, Sequence[str]] = {}
    if group_by == "tag":
        tags = tags_of(session, {run.schedule_id for run in bars} - {None})
    past, future = defaultdict(list), defaultdict(list)
    for run in sorted(bars, key=lambda run: (run.scheduled_for, run.id)):
        for label in _labels(run, tags.get(run.schedule_id, ()), group_by):
            past[label].append(run)
    for at, row in ticks:
        for label in _labels(row, row.tags, group_by):
            future[label].append((at, row))
    return [_row(label, past[label], future[label]) for label in sorted({*past, *future})]


def _labels(row: Any, tags: Collection[str], group_by: GroupBy) -> Iterable[str]:
    if group_by == "tag":
        return tags or [""]
    return [row.owner if group_by == "owner" else row.task]


def _row(label: str, past: Sequence[Any], future: Sequence[tuple[datetime, Any]]) -> TimelineRow:
    keys = {(each.owner, each.name) for each in (*past, *(row for _, row in future))}
    return TimelineRow(
        label=label,
        schedules=[ScheduleKey(owner=owner, name=name) for owner, name in sorted(keys)],
        bars=[_past_run(run) for run in past],
        ticks=[FutureRun(at=at, owner=row.owner, name=row.name) for at, row in future],
    )


def _past_run(run: Any) -> PastRun:
    return PastRun(
        id=run.id,
        owner=run.owner,
        name=run.name,
        scheduled_for=run.nominal_at or run.scheduled_for,
        started_at=run.started_at,
        finished_at=run.finished_at,
        status=run.status,
    )
