"""The beats and workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session, undefer

from celery_dynbeat.api.results import BoundedCount
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.db.models import Node, NodeKind
from celery_dynbeat.health.evaluation import SHOWN_FOR
from celery_dynbeat.insights.statistics.lag import lag_percentile
from celery_dynbeat.insights.statistics.last_minutes import last_minutes
from celery_dynbeat.insights.statistics.nodes import NodeStatus
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health
from celery_dynbeat.store.rollups import MINUTE, NOTHING
from celery_dynbeat.store.schedules import late_work
from celery_dynbeat.store.schedules.late_work import Late

#: The minutes of the lag and the rate, with the present one.
RATE_MINUTES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation(Info):
    """The beats and workers at ``now``, and what beat works on.

    - ``beats`` and ``workers`` were seen within the last hour; at most 200 of each, the most
      recently seen first.
    - ``lag_p50`` and ``lag_p99`` concern the runs that ended in the last five to six minutes.
      Manual runs, backfills and reruns have no lag.
    - ``dispatch_rate`` is the number of these runs that beat has sent, per second.
    - ``pending`` counts runs that no worker has started. ``resent`` counts the overdue ones among
      them, which beat sends again.
    """

    now: datetime
    beats: Sequence[NodeStatus]
    workers: Sequence[NodeStatus]
    lag_p50: timedelta | None
    lag_p99: timedelta | None
    dispatch_rate: float
    pending: BoundedCount
    resent: BoundedCount


def installation(context: Context, *, session: Session | None = None) -> Installation:
    """Return the beats and workers."""
    return context.read_many(session, lambda session: _installation(context, session))


def _installation(context: Context, session: Session) -> Installation:
    now = context.now(session)
    return Installation(
        now=now,
        beats=_nodes(context, session, NodeKind.BEAT, now=now),
        workers=_nodes(context, session, NodeKind.WORKER, now=now),
        **_dispatch(session, now=now),
        pending=_bounded(late_work.unstarted_runs(session)),
        resent=_bounded(late_work.overdue_runs(session, now=now)),
    )


def _nodes(
    context: Context, session: Session, kind: NodeKind, *, now: datetime
) -> Sequence[NodeStatus]:
    since = now - max(SHOWN_FOR, context.settings.node_timeout)
    statement = health.nodes_statement(kind, since=since).options(undefer(Node.queues))
    return tuple(NodeStatus.of(context, row, now=now) for row in session.scalars(statement))


def _bounded(late: Late) -> BoundedCount:
    return BoundedCount(count=late.count, exact=not late.is_more)


def _dispatch(session: Session, *, now: datetime) -> dict[str, Any]:
    minutes = last_minutes(session, now=now, count=RATE_MINUTES)
    found = sum((each.figures for each in minutes), NOTHING)
    length = min(now, minutes[-1].at + MINUTE) - minutes[0].at
    return {
        "lag_p50": lag_percentile(found, 0.5),
        "lag_p99": lag_percentile(found, 0.99),
        "dispatch_rate": found.sent / length.total_seconds(),
    }
