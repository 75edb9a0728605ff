"""List alerts. Beat opens and ends them."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import AlertInfo
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import alert_pages

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
    """The call of Schedules for alerts."""

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
