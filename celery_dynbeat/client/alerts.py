"""List alerts, and what their targets got. Beat opens and ends alerts, and sends messages."""

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import AlertInfo, AlertTargetInfo
from celery_dynbeat.common.alert_settings import urls_of
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import alert_messages, alert_pages

#: Of ids in the database.
_MAX_ID = 2**63 - 1


def _page(
    context: Context,
    session: Session | None,
    *,
    owner: str | None,
    only_open: bool,
    after: int | None,
    limit: int,
) -> Sequence[AlertInfo]:
    check_limit("limit", limit)
    if after is not None:
        checks.check_integer("after", after, minimum=0, maximum=_MAX_ID)
    rows = context.read_many(
        session,
        lambda session: alert_pages.page(
            session, owner=owner, only_open=only_open, after=after or 0, limit=limit
        ),
    )
    return [AlertInfo.of(row) for row in rows]


class OwnerAlertCalls:
    """The call of OwnerSchedules for alerts."""

    _context: Context
    owner: str

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: Session | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of the owner, in the order of their ids.

        With ``only_open=False`` also those from which the schedule has recovered. ``after`` is the
        id of the last alert of the previous call. ``limit`` is at most 1,000. Raises
        InvalidScheduleError.
        """
        return _page(
            self._context,
            session,
            owner=self.owner,
            only_open=only_open,
            after=after,
            limit=limit,
        )


class AlertCalls:
    """The calls of Schedules for alerts."""

    _context: Context

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: Session | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of all owners. Otherwise as ``OwnerSchedules.alerts``."""
        return _page(
            self._context, session, owner=None, only_open=only_open, after=after, limit=limit
        )

    def alert_targets(self, *, session: Session | None = None) -> Sequence[AlertTargetInfo]:
        """Return what the messages to each alert target have become, in the order of the names.

        The targets are those of the settings of this process, and others that have messages or
        unsent alerts.
        """
        urls = self._context.settings.alert_urls
        return self._context.read(session, lambda session: _targets(session, urls))


def _targets(session: Session, urls: Mapping[str, tuple[str, ...]]) -> Sequence[AlertTargetInfo]:
    counts = alert_pages.message_counts(session)
    errors = alert_pages.errors_of(
        session, [row.failed_id for row in counts.values() if row.failed_id is not None]
    )
    waiting = {each.target for each in alert_messages.waiting(session)}
    found = []
    for target in sorted({*urls, *counts, *waiting}):
        row = counts.get(target)
        unsent = alert_pages.count_unsent(session, target=target) if target in waiting else 0
        found.append(
            AlertTargetInfo(
                target=target,
                urls=len(urls_of(urls, target)),
                unsent_alerts=unsent,
                waiting=row.waiting if row else 0,
                failing=row.failing if row else 0,
                sent=row.sent if row else 0,
                dropped=row.dropped if row else 0,
                last_sent_at=row.last_sent_at if row else None,
                next_try_at=row.next_try_at if row else None,
                error=errors.get(row.failed_id) if row else None,
            )
        )
    return found
