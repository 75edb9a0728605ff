"""The schedules of all owners."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client import alerting, audit, changes, checks, erasure, history, limits
from celery_dynbeat.client.alerts import AlertCalls
from celery_dynbeat.client.cancelling import CancelCalls
from celery_dynbeat.client.erasure import Progress
from celery_dynbeat.client.history import StatusFilter
from celery_dynbeat.client.holds import HoldCalls
from celery_dynbeat.client.lists import ListCalls
from celery_dynbeat.client.new_rows import NewRows, NewSchedule
from celery_dynbeat.client.owner import OwnerSchedules
from celery_dynbeat.client.requests import RequestCalls
from celery_dynbeat.client.reruns import RerunCalls
from celery_dynbeat.client.views import BoundedCount, ChangePage, RunInfo, RunPage
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.store.changes import ChangeFilter


class Schedules(AlertCalls, CancelCalls, HoldCalls, ListCalls, RequestCalls, RerunCalls):
    """The calls that span owners. ``for_owner`` gives the calls of one owner.

    Every call accepts ``session=`` and then joins the transaction of the caller.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def for_owner(self, owner: str) -> OwnerSchedules:
        """Return the schedules of ``owner``; ``""`` is the application itself.

        ``owner`` has at most 255 characters. Raises InvalidScheduleError for an invalid owner.
        """
        return OwnerSchedules(self._context, owner)

    def create_many(
        self,
        many: Iterable[NewSchedule],
        *,
        session: Session | None = None,
    ) -> int:
        """Create all schedules or none, notify beat once, and return their number.

        Raises ScheduleExistsError if a name exists or occurs twice, and OwnerLimitError if an owner
        would exceed its quota. Raises InvalidScheduleError or InvalidTriggerError, with the index
        of the invalid schedule in the message (the first is 0).
        """
        if not isinstance(many, Iterable):
            raise checks.invalid("many", many, "must be an iterable of mappings")
        batch = NewRows(self._context, many, session)
        if session is None:
            # Planned before the transaction, so that it holds its locks for a shorter time.
            batch.plan(self._context.read(None, batch.read_timezones))

        def work(session: Session) -> int:
            rows = batch.plan(batch.lock_timezones(session))
            limits.check_quota(self._context, session, Counter(row.owner for row in rows))
            schedules.add_many(session, [row.insert_values() for row in rows])
            alerting.watch_new(self._context.settings, session, rows, now=batch.now)
            audit.created(self._context, session, rows, now=batch.now)
            earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)
            self._context.notify_beat(session, next_run_at=earliest, now=batch.now)
            return len(rows)

        return self._context.write(session, work)

    def delete_owner(
        self,
        owner: str,
        *,
        erase_history: bool = False,
        progress: Progress | None = None,
        session: Session | None = None,
    ) -> int:
        """Delete all schedules of ``owner`` and its holds, and return the number of schedules.

        Their runs that have not started are revoked. The history stays until it is pruned.

        With ``erase_history`` the owner's runs, changes and requests are deleted, too. Running
        tasks continue; their rows are deleted. One change remains: the owner's name, with the actor
        and the reason of this call. Without ``session`` each batch commits: first the schedules
        stop, then the history is deleted. ``progress`` is called after each batch with the number
        of deleted rows. If the call fails, repeat it. Let the application create nothing for the
        owner meanwhile.

        Raises InvalidScheduleError.
        """
        checks.check_name("owner", owner, empty=True)
        if not isinstance(erase_history, bool):
            raise checks.invalid("erase_history", erase_history, "must be True or False")
        if progress is not None and not callable(progress):
            raise checks.invalid("progress", progress, "must be a function of one number")
        if not erase_history:
            return erasure.delete(self._context, session, owner=owner)
        report = progress or (lambda _deleted: None)
        return erasure.erase(self._context, session, owner=owner, progress=report)

    def run(self, run_id: str, *, session: Session | None = None) -> RunInfo:
        """Return the run with this id, of any owner. Raises RunNotFoundError."""
        return history.get(self._context, session, owner=None, run_id=run_id)

    def runs(
        self,
        *,
        owner: str | None = None,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> RunPage:
        """Return one page of up to ``limit`` runs of all owners, the newest first.

        The order is that of creation: a run of a backfill for a past fire time is new. With
        ``owner``, the runs and their order are those of ``for_owner(owner).runs()``, where the
        arguments are described.

        A row of ``skip()`` is created before its fire time. With ``since`` it appears only if it
        was created after that instant, too. If more than 10,000 runs are unfinished, a list of
        unfinished statuses only is ordered by schedule, and newest first in each.
        """
        if owner is not None:
            checks.check_name("owner", owner, empty=True)
        matching = history.filter_of(
            owner=owner,
            name=None,
            status=status,
            task=task,
            origin=origin,
            since=since,
            until=until,
        )
        return history.page(self._context, session, matching=matching, limit=limit, after=after)

    def count_runs(
        self,
        *,
        owner: str | None = None,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        session: Session | None = None,
    ) -> BoundedCount:
        """Return the number of runs that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``runs()``. As for ``for_owner(owner).count_runs()``, the count can
        be a lower bound. Raises InvalidScheduleError.
        """
        if owner is not None:
            checks.check_name("owner", owner, empty=True)
        matching = history.filter_of(
            owner=owner,
            name=None,
            status=status,
            task=task,
            origin=origin,
            since=since,
            until=until,
        )
        return history.count(self._context, session, matching=matching)

    def changes(
        self,
        *,
        owner: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> ChangePage:
        """Return one page of up to ``limit`` edits, newest first, for the audit.

        Without ``owner``, the edits of all owners and of everything are returned. The other
        arguments are those of ``OwnerSchedules.changes``. Pass ``since`` with a rare ``action``:
        all changes since then are read until ``limit`` of them match. Raises InvalidScheduleError.
        """
        matching = ChangeFilter(owner=owner, actor=actor, action=action, since=since)
        return changes.page(self._context, session, matching=matching, limit=limit, after=after)
