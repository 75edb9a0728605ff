"""The alerts of all owners as an operator reads them: open ones, and the last recoveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api.results import AlertInfo
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import alerts

#: Open alerts that are read.
MAX_OPEN = 1_000
MAX_RECOVERED = 25
RECOVERED_WITHIN = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLists(Info):
    """The open alerts: the most urgent kind first, then the newest.

    If ``exact`` is false, there are others.

    ``recovered`` are the last recoveries of 24 hours, at most 25, the newest first.
    """

    open: Sequence[AlertInfo]
    exact: bool
    recovered: Sequence[AlertInfo]


def alert_lists(context: Context, *, session: Session | None = None) -> AlertLists:
    """Return the alerts. At most 1,001 open ones are read."""

    def work(session: Session) -> AlertLists:
        rows = alerts.open_alerts(session, limit=MAX_OPEN + 1)
        since = context.now(session) - RECOVERED_WITHIN
        newest = map(AlertInfo.of, alerts.newest_recovered(session, limit=MAX_RECOVERED))
        return AlertLists(
            open=sorted(map(AlertInfo.of, rows[:MAX_OPEN]), key=_order),
            exact=len(rows) <= MAX_OPEN,
            recovered=[each for each in newest if (each.recovered_at or since) > since],
        )

    return context.read_many(session, work)


def _order(each: AlertInfo) -> tuple[int, float]:
    return list(AlertKind).index(AlertKind(each.kind)), -each.opened_at.timestamp()
