"""The queries of the API: pages of schedules, histories of runs, upcoming fire times."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client.checks import check_instant, check_integer, check_name, invalid
from celery_dynbeat.client.views import Page, RunInfo, ScheduleInfo, cursor_of, key_of
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Origin, Schedule
from celery_dynbeat.planning.plan import following
from celery_dynbeat.planning.schedule_spec import ScheduleSpec
from celery_dynbeat.runtime.context import Context, naming_schedule
from celery_dynbeat.store import runs, schedules

MAX_PAGE_SIZE = 1_000


def page(
    context: Context,
    session: Session | None,
    *,
    matching: schedules.ScheduleFilter,
    limit: int,
    after: str | None,
) -> Page:
    """Return one page. Its cursor is None if it is the last page."""
    _check_limit("limit", limit)
    for field in ("owner", "task", "tag"):
        value = getattr(matching, field)
        if value is not None:
            check_name(field, value, empty=field == "owner")
    if matching.enabled is not None and not isinstance(matching.enabled, bool):
        raise invalid("enabled", matching.enabled, "must be True, False or None")
    key = None if after is None else key_of(after)
    rows = context.read_many(
        session,
        lambda session: schedules.page(session, matching=matching, after=key, limit=limit + 1),
    )
    items = tuple(ScheduleInfo.of(row) for row in rows[:limit])
    return Page(items, cursor_of(items[-1]) if len(rows) > limit else None)


def history(
    context: Context,
    session: Session | None,
    *,
    owner: str,
    name: str | None,
    status: str | None,
    origin: str | None,
    since: datetime | None,
    limit: int,
) -> Sequence[RunInfo]:
    """Return the newest runs that match.

    If a schedule of this ``name`` exists, only its own runs are returned. Otherwise the runs of
    all deleted schedules of this name are returned.
    """
    _check_limit("limit", limit)
    # A tuple: with a set, a value that is not hashable would raise TypeError.
    if status is not None and status not in tuple(Status):
        raise invalid("status", status, f"must be one of {', '.join(Status)}")
    if origin is not None and origin not in tuple(Origin):
        raise invalid("origin", origin, f"must be one of {', '.join(Origin)}")
    since = check_instant("since", since)
    if name is not None:
        check_name("name", name)

    def work(session: Session) -> Sequence[RunInfo]:
        row = None if name is None else schedules.get(session, owner=owner, name=name)
        matching = runs.RunFilter(
            owner=owner,
            name=name,
            schedule_id=None if row is None else row.id,
            status=status,
            origin=origin,
            since=since,
        )
        return [RunInfo.of(run) for run in runs.history(session, matching=matching, limit=limit)]

    return context.read_many(session, work)


def upcoming(context: Context, row: Schedule, *, count: int) -> list[datetime]:
    """Return the next ``count`` fire times of a row, within its span and ``max_runs``."""
    _check_limit("count", count)
    with naming_schedule(row):
        return _upcoming(context.spec(row), row, count=count)


def _upcoming(spec: ScheduleSpec, row: Schedule, *, count: int) -> list[datetime]:
    if row.max_runs is not None:
        count = min(count, row.max_runs - row.run_count)
    fire_times: list[datetime] = []
    # Without next_run_at the schedule is paused, finished or quarantined.
    fire_at = None if row.next_run_at is None else row.next_fire_at
    while fire_at is not None and len(fire_times) < count:
        if spec.end_at is not None and fire_at > spec.end_at:
            break
        fire_times.append(fire_at)
        fire_at = following(spec, fire_at)
    return fire_times


def _check_limit(field: str, value: object) -> None:
    check_integer(field, value, minimum=1, maximum=MAX_PAGE_SIZE)
