"""The calls that list and count schedules."""

from typing import Unpack

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.filters import ScheduleFilter
from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.results import BoundedCount, Page, ScheduleInfo
from celery_dynbeat.api.results.page import PAGE_SIZE


class ListCalls(Calls):
    """The calls that list and count schedules."""

    def list(
        self,
        *,
        order: str | None = None,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> Page[ScheduleInfo]:
        """Return one page of up to ``limit`` schedules that match.

        - The filters are described in ``ScheduleFilter``: owner, owner_prefix, task, enabled, tag,
          state and name_prefix.
        - ``order`` is ``"name"``, or ``"next_run_at"``, which leaves out schedules without a next
          run. None orders by name, but overdue schedules by next_run_at. Schedules of several
          owners are ordered by owner and name. Schedules of all owners are ordered by name and
          owner if you pass ``name_prefix``.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 schedules. If few of these schedules match, the page has a
        cursor but fewer than ``limit`` schedules, or none. The list ends when the cursor is None.
        Raises InvalidScheduleError.

        >>> [schedule.name for schedule in mine.list(state="active")]
        ['digest']
        """
        given = self._in_scope(ScheduleFilter, matching)
        return queries.page(
            self._context,
            self._session,
            matching=queries.filter_of(self._context, **given, session=self._session),
            order=order,
            limit=limit,
            after=after,
        )

    def count(self, **matching: Unpack[ScheduleFilter]) -> BoundedCount:
        """Return the number of matching schedules, up to 10,000. As text, it can be ``"10,000+"``.

        The filters are the same as in ``list()``. At most 10,001 schedules are read. If you filter
        by task, enabled or tag, the count of many schedules can therefore be a lower bound. Raises
        InvalidScheduleError.

        >>> str(mine.count(task="mail.digest"))
        '1'
        """
        given = self._in_scope(ScheduleFilter, matching)
        found = queries.filter_of(self._context, **given, session=self._session)
        return queries.count(self._context, self._session, matching=found)
