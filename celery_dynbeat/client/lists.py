"""The calls that list and count schedules: those of one owner, and of all owners.

Both have the same filters. Each call names them, so that an editor shows them and Python rejects
others.
"""

from sqlalchemy.orm import Session

from celery_dynbeat.client import queries
from celery_dynbeat.client.views import BoundedCount, Page
from celery_dynbeat.runtime.context import Context


class OwnerListCalls:
    """The calls of OwnerSchedules that list and count."""

    _context: Context
    owner: str

    def list(
        self,
        *,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        order: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by name.

        - ``state``: ``"active"``, ``"paused"``, ``"finished"``, ``"quarantined"``,
          ``"held"``, ``"overdue"`` or ``"failing"``.
        - ``name_prefix``: the text with which the name begins, case-sensitive.
        - ``task``: the exact name of a task. ``tag``: one tag.
        - ``order``: ``"name"``, or ``"next_run_at"``, which leaves out schedules without a
          next_run_at. None: by name; overdue schedules by next_run_at.
        - ``after``: the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 schedules. If few of them match, it has fewer than ``limit``
        schedules, or none, and a cursor: the list ends where the cursor is None. Raises
        InvalidScheduleError.
        """
        matching = queries.filter_of(
            self._context,
            owner=self.owner,
            task=task,
            enabled=enabled,
            tag=tag,
            state=state,
            name_prefix=name_prefix,
            session=session,
        )
        return queries.page(
            self._context, session, matching=matching, order=order, limit=limit, after=after
        )

    def count(
        self,
        *,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        session: Session | None = None,
    ) -> BoundedCount:
        """Return the number of schedules that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``list()``. At most 10,001 schedules are read, so with a filter on
        task, enabled or tag the count of many schedules can be a lower bound. Raises
        InvalidScheduleError.
        """
        matching = queries.filter_of(
            self._context,
            owner=self.owner,
            task=task,
            enabled=enabled,
            tag=tag,
            state=state,
            name_prefix=name_prefix,
            session=session,
        )
        return queries.count(self._context, session, matching=matching)


class ListCalls:
    """The calls of Schedules that list and count."""

    _context: Context

    def list(
        self,
        *,
        owner: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        order: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by owner and name.

        The arguments are those of ``for_owner(owner).list()``. Without ``owner``, the schedules of
        all owners are returned. With ``name_prefix`` these are ordered by name and owner. Raises
        InvalidScheduleError.
        """
        matching = queries.filter_of(
            self._context,
            owner=owner,
            task=task,
            enabled=enabled,
            tag=tag,
            state=state,
            name_prefix=name_prefix,
            session=session,
        )
        return queries.page(
            self._context, session, matching=matching, order=order, limit=limit, after=after
        )

    def count(
        self,
        *,
        owner: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        state: str | None = None,
        name_prefix: str | None = None,
        session: Session | None = None,
    ) -> BoundedCount:
        """Return the number of schedules that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``list()``. At most 10,001 schedules are read, so with a filter on
        task, enabled or tag the count of many schedules can be a lower bound. Raises
        InvalidScheduleError.
        """
        matching = queries.filter_of(
            self._context,
            owner=owner,
            task=task,
            enabled=enabled,
            tag=tag,
            state=state,
            name_prefix=name_prefix,
            session=session,
        )
        return queries.count(self._context, session, matching=matching)
