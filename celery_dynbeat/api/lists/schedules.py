"""The calls that list and count schedules."""

from typing import Unpack

from sqlalchemy.orm import Session

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
        session: Session | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> Page[ScheduleInfo]:
        """Return one page of up to ``limit`` schedules that match.

        - The filters are those of ``ScheduleFilter``: owner, task, enabled, tag, state and
          name_prefix.
        - ``order``: ``"name"``, or ``"next_run_at"``, which leaves out schedules without a
          next_run_at. None orders by name, and overdue schedules by next_run_at. Schedules of all
          owners are ordered by owner and name. If you pass ``name_prefix``, they are ordered by
          name and owner.
        - ``after``: the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 schedules. If few of these schedules match, the page has fewer
        than ``limit`` schedules, or none, and a cursor. The list ends when the cursor is None.
        Raises InvalidScheduleError.

        >>> [schedule.name for schedule in mine.list(state="active")]
        ['digest']
        """
        given = self._in_scope(ScheduleFilter, matching, accepts_group=True)
        return queries.page(
            self._context,
            session,
            matching=queries.filter_of(self._context, **given, session=session),
            order=order,
            limit=limit,
            after=after,
        )

    def count(
        self, *, session: Session | None = None, **matching: Unpack[ScheduleFilter]
    ) -> BoundedCount:
        """Return the number of schedules that match, up to 10,000: ``"10,000+"`` as text.

        The filters are the same as in ``list()``. At most 10,001 schedules are read. If you filter
        on task, enabled or tag, the count of many schedules can therefore be a lower bound. Raises
        InvalidScheduleError.

        >>> str(mine.count(task="mail.digest"))
        '1'
        """
        given = self._in_scope(ScheduleFilter, matching, accepts_group=True)
        found = queries.filter_of(self._context, **given, session=session)
        return queries.count(self._context, session, matching=found)
