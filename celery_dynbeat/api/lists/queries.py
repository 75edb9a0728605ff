"""Pages and counts of schedules."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import BoundedCount, Page, ScheduleInfo, cursors
from celery_dynbeat.common.states import TIMED, State
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import schedule_pages
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.schedules.schedule_pages import Order

#: How the parts of a key are read from a cursor.
_PARTS = {
    Order.OWNER: (cursors.as_text, cursors.as_text),
    Order.NAME: (cursors.as_text, cursors.as_text),
    Order.NEXT_RUN_AT: (cursors.as_instant, cursors.as_row_id),
}


def filter_of(
    context: Context,
    *,
    owner: str | None,
    task: str | None = None,
    enabled: bool | None = None,
    tag: str | None = None,
    state: str | None = None,
    name_prefix: str | None = None,
    session: Session | None = None,
) -> ScheduleFilter:
    """Return the filter of a list from the arguments of a call, checked."""
    names: dict[str, str | None] = {"owner": owner, "task": task, "tag": tag}
    for field, value in names.items():
        if value is not None:
            checks.check_name(field, value, empty=field == "owner")
    if enabled is not None and not isinstance(enabled, bool):
        raise checks.invalid("enabled", enabled, "must be True, False or None")
    if name_prefix is not None:
        checks.check_prefix("name_prefix", name_prefix)
    now = context.now(session) if state is not None else None
    return ScheduleFilter(
        owner=owner,
        task=task,
        enabled=enabled,
        tag=tag,
        state=_state(state),
        name_prefix=name_prefix or None,
        now=now,
        overdue_before=None if now is None else now - context.settings.dispatch_timeout,
    )


def _state(state: object) -> State | None:
    return None if state is None else State(checks.check_one_of("state", state, *State))


def page(
    context: Context,
    session: Session | None,
    *,
    matching: ScheduleFilter,
    order: str | None,
    limit: int,
    after: str | None,
) -> Page[ScheduleInfo]:
    """Return one page. Its cursor is None if it is the last page."""
    checks.check_limit("limit", limit)
    by = order_of(matching, order)
    key = None if after is None else cursors.decode(after, order=by, parts=_PARTS[by])
    found = context.read_many(
        session,
        lambda session: schedule_pages.page(
            session, matching=matching, order=by, after=key, limit=limit
        ),
    )
    cursor = None if found.last_key is None else cursors.encode(by, found.last_key)
    return Page(tuple(map(ScheduleInfo.of, found.rows)), cursor)


def order_of(matching: ScheduleFilter, order: str | None) -> Order:
    """Return the order that a caller gave, or the default order of the state. It has an index."""
    if order is None:
        order = "next_run_at" if matching.state == State.OVERDUE else "name"
    if checks.check_one_of("order", order, "name", "next_run_at") == "next_run_at":
        if matching.state is not None and matching.state not in TIMED:
            rule = f"{matching.state} schedules have no next_run_at; list them by 'name'"
            raise checks.invalid("order", order, rule)
        return Order.NEXT_RUN_AT
    spans_owners = matching.owner is None and matching.state != State.HELD
    return Order.NAME if matching.name_prefix and spans_owners else Order.OWNER


def count(
    context: Context,
    session: Session | None,
    *,
    matching: ScheduleFilter,
    limit: int | None = None,
) -> BoundedCount:
    """Return the number of matching schedules.

    If ``limit`` is given, it reads at most that many schedules.
    """
    found, is_more = context.read_many(
        session, lambda session: schedule_pages.count(session, matching=matching, limit=limit)
    )
    return BoundedCount(count=found, exact=not is_more)
