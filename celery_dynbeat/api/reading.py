"""The calls that read: schedules, runs, batches, changes, alerts, limits and forecasts."""

from datetime import datetime, timedelta
from typing import Any, Unpack

from kombu.utils.imports import symbol_by_name
from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.filters import ChangeFilter, OwnerFilter, RunFilter, ScheduleFilter
from celery_dynbeat.api.lists import history, queries
from celery_dynbeat.api.results import (
    AlertInfo,
    BatchInfo,
    BoundedCount,
    ChangeInfo,
    ForecastInfo,
    Page,
    RunInfo,
    ScheduleInfo,
    Usage,
    cursors,
)
from celery_dynbeat.api.results.explanation import Explanation
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.api.usage import usage_of
from celery_dynbeat.common.errors import BatchNotFoundError, RunNotFoundError
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import Action
from celery_dynbeat.store import alerts, runs
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.schedules import change_pages

#: The orders of the pages, as their cursors name them.
_NEWEST_CHANGE, _OLDEST_ALERT = "newest_change", "oldest_alert"
# A name: an explanation reads the health of the installation, which uses the API.
_EXPLAIN = "celery_dynbeat.insights.explain.collect:explain"


class ReadCalls(Calls):
    """The calls that read. Those of one owner see the rows of that owner only."""

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

    def get_run(self, run_id: str) -> RunInfo:
        """Return the run with this id, which is also its Celery task id.

        Raises RunNotFoundError, also for a run whose owner is outside the scope of the calls.

        >>> run = mine.run_now("digest")
        >>> mine.get_run(run.id).name
        'digest'
        """
        run_id = checks.check_run_id("run_id", run_id)

        def work(session: Session) -> RunInfo:
            run = runs.get(session, run_id=run_id)
            if run is None or self._owner not in {None, run.owner}:
                raise RunNotFoundError(owner=self._owner, run_id=run_id)
            return RunInfo.of(run)

        return self._read(work)

    def runs(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[RunFilter],
    ) -> Page[RunInfo]:
        """Return one page of up to ``limit`` runs that match, the newest first.

        - ``name`` selects the runs of the schedules with this name. If the schedule exists, only
          its own runs are returned. The history of a deleted schedule can still be read under its
          name.
        - The other filters are described in ``RunFilter``: owner, status, task, origin,
          batch_id, since, until.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        The runs of one owner are ordered by fire time. The runs of all owners are ordered by their
        creation, so a backfill's run for a past fire time counts as new. A row of ``skip()`` is
        created before its fire time. If you pass ``since`` for all owners, the row is only returned
        if it was also created after that instant.

        A page reads at most 10,000 runs. If few of these runs match, the page has a cursor but
        fewer than ``limit`` runs, or none. The history ends when the cursor is None. If all
        statuses in the filter are unfinished, and at most 10,000 runs are unfinished, only the
        unfinished runs are read. If there are more, a list of all owners is ordered by schedule,
        with the newest run of each schedule first. Raises InvalidScheduleError.

        >>> _ = mine.run_now("digest")
        >>> [(run.name, run.status) for run in mine.runs(origin="manual")]
        [('digest', 'pending')]
        """
        checks.check_limit("limit", limit)
        found = history.filter_of(name=name, **self._in_scope(RunFilter, matching))
        return history.page(self._context, self._session, matching=found, limit=limit, after=after)

    def count_runs(
        self,
        name: str | None = None,
        **matching: Unpack[RunFilter],
    ) -> BoundedCount:
        """Return the number of matching runs, up to 10,000. As text, it can be ``"10,000+"``.

        The filters are the same as in ``runs()``. At most 10,001 runs are read, the newest first.
        If you filter by status, task or origin, the count in a long history can therefore be a
        lower bound. Raises InvalidScheduleError.
        """
        found = history.filter_of(name=name, **self._in_scope(RunFilter, matching))
        return history.count(self._context, self._session, matching=found)

    def changes(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[ChangeFilter],
    ) -> Page[ChangeInfo]:
        """Return one page of up to ``limit`` edits that match, newest first.

        - ``name`` selects the edits of the schedules with this name. ``name=""`` returns only edits
          of an owner, or of everything, such as a hold. The edits of a deleted schedule can be read
          under its name until dynbeat_audit_retention has passed.
        - The other filters are described in ``ChangeFilter``: owner, actor, action, since, until.
          If you filter by a rare ``action``, or by a ``name`` for all owners, also pass ``since``,
          because the call reads the changes since that instant until ``limit`` of them match.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        Raises InvalidScheduleError.

        >>> _ = mine.bound(actor="alice", reason="too many at nine").update("digest", window=5)
        >>> [(change.action, change.actor) for change in mine.changes("digest")]
        [('update', 'alice'), ('create', '')]
        """
        checks.check_limit("limit", limit)
        found = _change_filter(name, **self._in_scope(ChangeFilter, matching))
        key = None if after is None else cursors.decode(after, order=_NEWEST_CHANGE, parts=_KEY)
        rows = self._read_many(
            lambda session: change_pages.page(session, matching=found, after=key, limit=limit + 1),
        )
        return page_of(rows, limit=limit, order=_NEWEST_CHANGE, info=ChangeInfo.of, key=_key)

    def get_batch(self, batch_id: str) -> BatchInfo:
        """Return the number of runs of a batch by status.

        ``runs(batch_id=...)`` lists the runs, and ``cancel_runs(batch_id=...)`` cancels those that
        have not started. Raises BatchNotFoundError for a batch that has no run of the owner, or no
        longer.

        >>> result = mine.backfill(
        ...     "digest",
        ...     since=datetime(2025, 12, 1, tzinfo=UTC),
        ...     until=datetime(2025, 12, 8, tzinfo=UTC),
        ... )
        >>> mine.get_batch(result.batch_id).counts
        {'pending': 5}
        """
        batch_id = checks.check_run_id("batch_id", batch_id)

        def work(session: Session) -> BatchInfo:
            counts = run_pages.count_batch(session, batch_id=batch_id, owner=self._owner)
            if not counts:
                raise BatchNotFoundError(owner=self._owner, batch_id=batch_id)
            return BatchInfo(id=batch_id, created_at=created_at(batch_id), counts=counts)

        return self._read(work)

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
        checks.check_limit("limit", limit)
        key = cursors.decode_id(after, order=_OLDEST_ALERT)
        rows = self._read_many(
            lambda session: alerts.page(
                session, owner=self._owner, only_open=only_open, after=key, limit=limit + 1
            ),
        )
        return page_of(
            rows, limit=limit, order=_OLDEST_ALERT, info=AlertInfo.of, key=lambda info: (info.id,)
        )

    def usage(self, owner: str | None = None) -> Usage:
        """Return how many schedules and runs an owner has, and the limits on them.

        ``owner`` is needed only for the calls of all owners.

        The limits come from dynbeat_owner_limits, and from the settings per owner, such as
        dynbeat_max_schedules_per_owner. Paused and finished schedules count. Each count reads the
        index entries of the schedules, and of the runs that have or wait for a place. Raises
        InvalidScheduleError.

        >>> mine.usage().schedules, mine.usage().remaining
        (1, None)
        """
        name = self._in_scope(OwnerFilter, {"owner": owner})["owner"]
        if name is None:
            raise checks.invalid("owner", owner, "must be the name of an owner")
        return usage_of(self._context, self._session, name)

    def forecast(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        per: str = "minute",
        queue: str | None = None,
        **matching: Unpack[OwnerFilter],
    ) -> ForecastInfo:
        """Return how many runs become due in each minute or hour, by queue, including recurrences.

        - ``since`` is now by default, and cannot be earlier. ``until`` is an hour later by default.
          The forecast covers whole minutes or hours, at most 1,440.
        - ``per`` is ``"minute"`` or ``"hour"``. ``queue`` selects one queue, and ``owner`` the
          schedules of one owner.

        ``skip()``, ``end_at``, ``max_runs``, windows and quiet hours are taken into account. Paused
        schedules have no runs. Held schedules are counted at their fire times. Retries, reruns and
        manual runs cannot be foreseen. The recurrences of the first 1,000 schedules are counted,
        and the next run of the first 50,000. ``is_at_least`` says if there are more. The call
        imports the tasks of the application, because their options determine the queue.

        Raises InvalidScheduleError.

        >>> found = mine.forecast(until=datetime(2026, 1, 6, 9, 30, tzinfo=UTC), per="hour")
        >>> [(str(row.start_at), row.queue, row.runs) for row in found.rows]
        [('2026-01-06 09:00:00+00:00', 'celery', 1)]
        """
        given = self._in_scope(OwnerFilter, matching)
        checks.check_one_of("per", per, "minute", "hour")
        if queue is not None:
            checks.check_name("queue", queue)
        now = self._now()
        first = max(checks.check_instant("since", since) or now, now)
        last = checks.check_instant("until", until) or first + timedelta(hours=1)
        # A late import: few callers forecast, and a forecast needs much of beat.
        from celery_dynbeat.api.lists import forecast  # noqa: PLC0415

        return forecast.forecast(
            self._context,
            bins=forecast.whole_bins(first, last, per),
            per=per,
            queue=queue,
            owner=given["owner"],
            now=now,
            session=self._session,
        )

    def explain(
        self,
        name: str,
        *,
        at: datetime | None = None,
        count: int = 5,
        **matching: Unpack[OwnerFilter],
    ) -> Explanation:
        """Return why the schedule ran or did not run, as ``dynbeat explain`` prints it.

        - ``at`` asks about the fire time in the minute that begins with this instant. The answer
          comes from the history and the audit. None asks about the present.
        - ``count`` is the number of last runs and of next fire times, at most 100.
        - ``owner`` is required in the calls across owners.

        The call imports the tasks of the application, because their options determine the queue.
        Raises ScheduleNotFoundError and InvalidScheduleError.

        >>> found = mine.explain("digest")
        >>> found.cause
        'no_beat'
        """
        owner = self._in_scope(OwnerFilter, matching)["owner"]
        if owner is None:
            raise checks.invalid("owner", owner, "must be the owner of the schedule")
        checks.check_name("name", name)
        checks.check_integer("count", count, minimum=1, maximum=100)
        explanation: Explanation = symbol_by_name(_EXPLAIN)(
            self._context,
            owner=owner,
            name=name,
            at=checks.check_instant("at", at),
            run_count=count,
            count=count,
            session=self._session,
        )
        return explanation


def _change_filter(name: str | None, **given: Any) -> change_pages.ChangeFilter:
    for field, value in {"name": name, "actor": given["actor"]}.items():
        if value is not None:
            checks.check_name(field, value, empty=True)
    if given["action"] is not None:
        checks.check_choice("action", given["action"], *map(str, Action))
    for field in ("since", "until"):
        given[field] = checks.check_instant(field, given[field])
    return change_pages.ChangeFilter(name=name, **given)


def _key(change: ChangeInfo) -> tuple[Any, ...]:
    return change.changed_at, change.id


_KEY = (cursors.as_instant, cursors.as_row_id)
