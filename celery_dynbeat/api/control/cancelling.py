"""Cancel one or many runs that have not started, or that wait for a retry.

A cancelled run is ``revoked``, and the guard in the worker drops its message. Its schedule does not
change: the fire time counts as run, also for ``max_runs``.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.filters import RunFilter, StatusFilter
from celery_dynbeat.api.lists import history
from celery_dynbeat.api.results import RunInfo
from celery_dynbeat.common.errors import RunNotFoundError
from celery_dynbeat.common.states import REVOKE, Action, Status
from celery_dynbeat.common.text import MAX_CANCELLED
from celery_dynbeat.db.models import Run
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import run_filters, run_pages, unfinished

#: The error of a cancelled run.
CANCELLED = "the run was cancelled"
#: Runs that one transaction of ``cancel_runs`` cancels.
BATCH_SIZE = 500


class CancelCalls(Calls):
    """The calls that cancel runs."""

    def cancel_run(
        self,
        run_id: str,
    ) -> RunInfo:
        """Cancel a run that has not started or waits for a retry, and return it as ``revoked``.

        The guard in the worker drops the message of the run. The fire time still counts as a run.

        Raises RunNotFoundError. Raises InvalidScheduleError for a run that is running or has ended.
        To end a running one, use Celery's ``revoke(run_id, terminate=True)``.

        >>> run = mine.run_now("digest")
        >>> mine.cancel_run(run.id).status
        'revoked'
        """
        run_id = checks.check_run_id("run_id", run_id)

        def work(session: Session) -> RunInfo:
            run = runs.lock(session, run_id=run_id, owner=self._owner)
            if run is None:
                raise RunNotFoundError(owner=self._owner, run_id=run_id)
            now = self._context.clock.now()
            if not runs.revoke(session, [run_id], now=now, reason=CANCELLED):
                raise checks.invalid("run_id", run_id, _refusal(run))
            session.refresh(run)
            release_buffered(self._context, session, [run], now=now)
            edit = audit.Edit(
                owner=run.owner, name=run.name, action=Action.CANCEL, new={"run_id": run_id}
            )
            audit.record(self._context, session, [edit], now=now)
            return RunInfo.of(run)

        return self._write(work)

    def cancel_runs(
        self,
        name: str | None = None,
        *,
        limit: int = 10_000,
        **matching: Unpack[RunFilter],
    ) -> int:
        """Cancel the matching runs that have not started or wait for a retry; return their number.

        - ``name`` and the filters are the same as in ``runs()``. If you pass none of them, all such
          runs in the scope are cancelled.
        - ``status`` is one or several of ``pending``, ``sent`` and ``retrying``. The default is all
          three.
        - ``limit`` is the largest number of runs to cancel, up to 100,000. If the call returns this
          number, more runs may match. In that case, repeat the call.

        Without a ``session``, each batch of 500 runs commits. If the call fails, repeat
        it. Runs that beat records or a worker starts during the call may not be cancelled. Raises
        InvalidScheduleError.

        >>> _ = mine.run_now("digest")
        >>> mine.cancel_runs("digest")
        1
        """
        checks.check_integer("limit", limit, minimum=1, maximum=MAX_CANCELLED)
        found = filter_of(name=name, **self._in_scope(RunFilter, matching))
        with self._acting():
            return _cancel_all(self._context, self._session, matching=found, limit=limit)


def filter_of(
    *, owner: str | None, status: StatusFilter | None = None, **given: Any
) -> run_filters.RunFilter:
    """Return the filter of ``cancel_runs`` from its arguments, checked."""
    return history.filter_of(owner=owner, status=_check_statuses(status), **given)


def _check_statuses(status: StatusFilter | None) -> Sequence[str]:
    statuses = checks.check_choices("status", status, *Status)
    for each in statuses:
        if each == Status.RUNNING:
            rule = "to end running runs, call Celery's app.control.revoke(ids, terminate=True)"
            raise checks.invalid("status", str(each), rule)
        if each not in REVOKE.sources:
            rule = f"only runs in {', '.join(REVOKE.sources)} can be cancelled"
            raise checks.invalid("status", str(each), rule)
    return statuses or REVOKE.sources


def _cancel_all(
    context: Context, session: Session | None, *, matching: run_filters.RunFilter, limit: int
) -> int:
    matching = context.read(session, partial(history.with_schedule, matching=matching))
    cancelled, after = 0, None
    while True:
        search = partial(run_pages.unfinished_keys, matching=matching, after=after)
        # Before the write: SQLite lets no other process write during a write.
        found = context.read_many(
            session, partial(search, limit=min(BATCH_SIZE, limit - cancelled))
        )
        if found.rows:
            ids = [row.id for row in found.rows]
            cancelled += _cancel_batch(context, session, ids, matching=matching)
        after = found.last
        if after is None or cancelled >= limit:
            return cancelled


def _cancel_batch(
    context: Context,
    session: Session | None,
    ids: Sequence[str],
    *,
    matching: run_filters.RunFilter,
) -> int:
    # A run can have moved to another owner since its id was read.
    conditions = run_filters.unfinished_scan(matching).filters

    def work(session: Session) -> int:
        rows = runs.lock_many(session, ids, conditions)
        now = context.clock.now()
        cancelled = runs.revoke(session, [row.id for row in rows], now=now, reason=CANCELLED)
        release_buffered(context, session, rows, now=now)
        audit.record(context, session, _edits(rows), now=now)
        return cancelled

    return context.write(session, work)


def _edits(rows: Sequence[Any]) -> Sequence[audit.Edit]:
    """Return one edit for each schedule of the cancelled runs."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        ids[row.owner, row.name].append(row.id)
    return [
        audit.Edit(owner=owner, name=name, action=Action.CANCEL, new={"run_ids": of_schedule})
        for (owner, name), of_schedule in ids.items()
    ]


def release_buffered(
    context: Context, session: Session, rows: Sequence[Any], *, now: datetime
) -> None:
    """Let beat send the buffered runs that waited for the cancelled runs."""
    schedule_ids = sorted({row.schedule_id for row in rows if row.schedule_id is not None})
    default = context.settings.overlap
    if unfinished.make_all_buffered_overdue(session, schedule_ids, default=default, now=now):
        context.notifier.notify(session)


def _refusal(run: Run) -> str:
    """Return why a run cannot be cancelled, and what to do."""
    if run.status == Status.RUNNING:
        return (
            f"the run is running on {run.worker}: to end its process, call Celery's"
            f" app.control.revoke({run.id!r}, terminate=True)"
        )
    return f"the run has ended as {run.status}: there is nothing to cancel"
