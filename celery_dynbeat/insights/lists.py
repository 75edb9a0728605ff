"""Facts that the lists of Flower and of the command line show with their rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.reading import count_schedules, schedule_filter
from celery_dynbeat.api.results import AlertInfo, Page, ScheduleInfo
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.states import State
from celery_dynbeat.health.nodes import reported_names
from celery_dynbeat.process.context import Context, reading
from celery_dynbeat.store import alerts, calendars, nodes
from celery_dynbeat.store.owners import with_schedules

#: The key of the number of schedules in any state.
ANY = ""
#: Schedules that are read for a number whose condition no index covers: their rows can lie on as
#: many pages of the table.
MAX_UNCOVERED = 2_000
#: If there is no filter, an index alone counts the schedules in these states.
_COVERED = (None, State.ACTIVE)


@reading
def state_counts(
    context: Context, session: Session, matching: ScheduleFilter | None = None
) -> Mapping[str, BoundedCount]:
    """Return the number of schedules in each state, and in any state with the key ``""``.

    A number is exact if at most 2,000 schedules are read for it. If there is no filter, the numbers
    of all schedules and of active schedules are exact up to 10,000. Raises InvalidArgumentError for
    an invalid filter.
    """
    matching = replace(matching or ScheduleFilter(), state=None)
    is_filtered = matching != ScheduleFilter()
    return {
        str(state or ANY): count_schedules(
            context,
            session,
            matching=schedule_filter(context, replace(matching, state=state)),
            limit=MAX_UNCOVERED if is_filtered or state not in _COVERED else None,
        )
        for state in (None, *State)
    }


#: Open alerts that are read.
MAX_OPEN = 1_000
MAX_RECOVERED = 25
RECOVERED_WITHIN = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLists:
    """The open alerts: the most urgent kind first, then the newest.

    If ``exact`` is false, there are others.

    ``recovered`` are the last recoveries of 24 hours, at most 25, the newest first.
    """

    open: Sequence[AlertInfo]
    exact: bool
    recovered: Sequence[AlertInfo]


@reading
def alert_lists(context: Context, session: Session) -> AlertLists:
    """Return the alerts. At most 1,001 open ones are read."""
    rows = alerts.open_alerts(session, limit=MAX_OPEN + 1)
    since = context.now(session) - RECOVERED_WITHIN
    newest = map(AlertInfo.of, alerts.newest_recovered(session, limit=MAX_RECOVERED))
    return AlertLists(
        open=sorted(map(AlertInfo.of, rows[:MAX_OPEN]), key=_order),
        exact=len(rows) <= MAX_OPEN,
        recovered=[each for each in newest if (each.recovered_at or since) > since],
    )


def _order(each: AlertInfo) -> tuple[int, float]:
    return list(AlertKind).index(AlertKind(each.kind)), -each.opened_at.timestamp()


@reading
def calendar_schedules(
    _context: Context, session: Session, *, name: str, limit: int = 25
) -> Page[ScheduleInfo]:
    """Return up to ``limit`` schedules that use the calendar ``name``, in one page.

    Those that beat has not planned with the newest version come first.
    """
    checks.check_limit("limit", limit)
    rows = calendars.first_schedules(session, name=name, limit=limit)
    return Page(tuple(map(ScheduleInfo.of, rows)), None)


#: Celery's own tasks.
_BUILT_IN = "celery."


@reading
def owners(_context: Context, session: Session, *, limit: int = 10) -> Sequence[str]:
    """Return the first ``limit`` owners of schedules, in order.

    The application itself is the owner ``""``.
    """
    checks.check_limit("limit", limit)
    return with_schedules(session, limit=limit)


@reading
def tasks(context: Context, session: Session, *, prefix: str, limit: int = 10) -> Sequence[str]:
    """Return up to ``limit`` task names that begin with ``prefix``, in order.

    They are the tasks that living workers registered and the tasks of this application, without
    Celery's own tasks.
    """
    checks.check_prefix("prefix", prefix)
    checks.check_limit("limit", limit)
    seen_since = context.now(session) - context.settings.node_timeout
    lists = nodes.task_lists(session, seen_since=seen_since)
    reported = (name for each in lists for name in reported_names(each) or ())
    names = {*reported, *context.task_names.known()}
    found = (name for name in names if name.startswith(prefix) and not name.startswith(_BUILT_IN))
    return sorted(found)[:limit]
