"""List alerts. Beat opens and ends them, and sends messages."""

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.results import AlertInfo, Page, cursors
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.store import alerts

#: The order of the pages, as their cursors name it.
_OLDEST = "oldest_alert"


class AlertCalls(Calls):
    """The call for alerts."""

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = PAGE_SIZE,
        after: str | None = None,
    ) -> Page[AlertInfo]:
        """Return one page of up to ``limit`` alerts, in the order of their ids.

        If ``only_open`` is false, the page also contains alerts that have ended. ``after`` is the
        ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises InvalidScheduleError.
        """
        check_limit("limit", limit)
        key = cursors.decode_id(after, order=_OLDEST)
        rows = self._read_many(
            lambda session: alerts.page(
                session, owner=self._owner, only_open=only_open, after=key, limit=limit + 1
            ),
        )
        return page_of(
            rows, limit=limit, order=_OLDEST, info=AlertInfo.of, key=lambda info: (info.id,)
        )
