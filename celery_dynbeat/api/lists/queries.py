"""Pages and counts of schedules."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import BoundedCount, Page, ScheduleInfo, cursors
from celery_dynbeat.common.states import TIMED, State
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds
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
    owner_prefix: str | None = None,
    task: str | None = None,
    enabled: bool | None = None,
    tag: str | None = None,
    state: str | None = None,
    name_prefix: str | None = None,
    text: str | None = None,
    session: Session | None = None,
) -> ScheduleFilter:
    """Return the filter of a list from the arguments of a call, checked."""
    names: dict[str, str | None] = {"owner": owner, "task": task, "tag": tag, "text": text}
    for field, value in names.items():
        if value is not None:
            checks.check_name(field, value, empty=field == "owner")
    if enabled is not None and not isinstance(enabled, bool):
        raise checks.invalid("enabled", enabled, "must be True, False or None")
    if owner_prefix is not None:
        _check_owner_prefix(owner_prefix, owner)
    if name_prefix is not None:
        checks.check_prefix("name_prefix", name_prefix)
    now = context.now(session) if state is not None else None
    return ScheduleFilter(
        owner=owner,
        owner_prefix=owner_prefix,
        task=task,
        enabled=enabled,
        tag=tag,
        state=_state(state),
        name_prefix=name_prefix or None,
        text=text,
        now=now,
        overdue_before=None if now is None else now - context.settings.dispatch_timeout,
    )


def _check_owner_prefix(prefix: object, owner: str | None) -> None:
    if not checks.check_prefix("owner_prefix", prefix):
        raise checks.invalid("owner_prefix", prefix, "must not be empty")
    if owner is not None:
        rule = f"cannot be combined with owner {owner!r}: call dynbeat.schedules without owner="
        raise checks.invalid("owner_prefix", prefix, rule)


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

    def work(session: Session) -> tuple[schedule_pages.ScheduleRows, frozenset[str]]:
        found = schedule_pages.page(session, matching=matching, order=by, after=key, limit=limit)
        whose = {row.owner for row in found.rows}
        return found, holds.held_of(session, whose, now=context.clock.now())

    found, held = context.read_many(session, work)
    cursor = None if found.last_key is None else cursors.encode(by, found.last_key)
    infos = (ScheduleInfo.of(row, is_held=row.owner in held) for row in found.rows)
    return Page(tuple(infos), cursor)


def order_of(matching: ScheduleFilter, order: str | None) -> Order:
    """Return the order that a caller gave, or the default order of the state. It has an index."""
    if order is None:
        order = "next_run_at" if matching.state == State.OVERDUE else "name"
    if checks.check_one_of("order", order, "name", "next_run_at") == "next_run_at":
        if matching.state is not None and matching.state not in TIMED:
            rule = f"{matching.state} schedules have no next_run_at; list them by 'name'"
            raise checks.invalid("order", order, rule)
        return Order.NEXT_RUN_AT
    if matching.name_prefix and matching.is_of_all and matching.state != State.HELD:
        return Order.NAME
    return Order.OWNER


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
