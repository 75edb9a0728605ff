"""The calls that read: schedules, runs, batches, changes, alerts, limits and forecasts."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Unpack

from kombu.utils.imports import symbol_by_name
from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import (
    NEWEST_CHANGE,
    OLDEST_ALERT,
    PAGE_SIZE,
    Calls,
    decode_cursor,
    encode_cursor,
    order_of_cursor,
)
from celery_dynbeat.api.filters import (
    ChangeKeywords,
    OwnerFilter,
    RunKeywords,
    ScheduleKeywords,
    checked,
)
from celery_dynbeat.api.limits import usage_of
from celery_dynbeat.api.results import (
    AlertInfo,
    BatchInfo,
    ChangeInfo,
    Explanation,
    ForecastInfo,
    Page,
    RunInfo,
    ScheduleInfo,
    Usage,
)
from celery_dynbeat.common.errors import NotFoundError
from celery_dynbeat.common.filters import ChangeFilter, Order, RunFilter, ScheduleFilter
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import TIMED, State
from celery_dynbeat.db.models import Change
from celery_dynbeat.db.statements import Row
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import alerts, changes, holds, runs, schedules
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.scans import Position, Rows
from celery_dynbeat.store.schedules import schedule_pages

# A name: an explanation reads the health of the installation, which uses the API.
_EXPLAIN = "celery_dynbeat.insights.explain.reading:explain"


def schedule_filter(
    context: Context, matching: ScheduleFilter, *, session: Session | None = None
) -> ScheduleFilter:
    """Return the filter, checked, with the present instant if its state depends on it."""
    matching = checked(matching)
    if matching.state is None:
        return matching
    now = context.now(session)
    return replace(matching, now=now, overdue_before=now - context.settings.dispatch_timeout)


def schedules_page(
    context: Context,
    session: Session | None,
    *,
    matching: ScheduleFilter,
    order: str | None,
    limit: int,
    after: str | None,
) -> Page[ScheduleInfo]:
    """Return one page. Its cursor is None if it is the last page."""
    checks.check_limit("limit", limit)
    by = order_of_schedules(matching, order)
    last = None if after is None else Position(by, decode_cursor(after, order=by))

    def work(session: Session) -> tuple[Rows, frozenset[str]]:
        found = schedule_pages.page(session, matching=matching, order=by, after=last, limit=limit)
        whose = {row.owner for row in found.rows}
        return found, holds.held_of(session, whose, now=context.clock.now())

    found, held = context.read_many(session, work)
    cursor = None if found.last is None else encode_cursor(*found.last)
    infos = (ScheduleInfo.of(row, is_held=row.owner in held) for row in found.rows)
    return Page(tuple(infos), cursor)


def order_of_schedules(matching: ScheduleFilter, order: str | None) -> Order:
    """Return the order that a caller gave, or the default order of the state. It has an index."""
    if order is None:
        order = "next_run_at" if matching.state == State.OVERDUE else "name"
    if checks.check_one_of("order", order, "name", "next_run_at") == "next_run_at":
        if matching.state is not None and matching.state not in TIMED:
            rule = f"{matching.state} schedules have no next_run_at; list them by 'name'"
            raise checks.invalid("order", order, rule)
        return Order.NEXT_RUN_AT
    if matching.name_prefix and matching.is_of_all and matching.state != State.HELD:
        return Order.NAME
    return Order.OWNER


def count_schedules(
    context: Context,
    session: Session | None,
    *,
    matching: ScheduleFilter,
    limit: int | None = None,
) -> BoundedCount:
    """Return the number of matching schedules.

    If ``limit`` is given, it reads at most that many schedules.
    """
    return context.read_many(
        session, lambda session: schedule_pages.count(session, matching=matching, limit=limit)
    )


def _runs_position(matching: RunFilter, after: str) -> Position:
    is_unfinished_of_all = matching.is_unfinished and matching.owner is None
    is_by_schedule = is_unfinished_of_all and order_of_cursor(after) == Order.SCHEDULE
    order = Order.SCHEDULE if is_by_schedule else run_pages.order_of(matching)
    return Position(order, decode_cursor(after, order=order))


def runs_page(
    context: Context,
    session: Session | None,
    *,
    matching: RunFilter,
    limit: int,
    after: str | None,
) -> Page[RunInfo]:
    """Return one page. Its cursor is None if it is the last page."""
    position = None if after is None else _runs_position(matching, after)

    def work(session: Session) -> Page[RunInfo]:
        own = with_schedule(session, matching)
        found = run_pages.page(session, matching=own, after=position, limit=limit)
        last = found.last
        cursor = None if last is None else encode_cursor(*last)
        return Page(tuple(map(RunInfo.of, found.rows)), cursor)

    return context.read_many(session, work)


def count_runs(context: Context, session: Session | None, *, matching: RunFilter) -> BoundedCount:
    """Return the number of matching runs."""

    def work(session: Session) -> BoundedCount:
        return run_pages.count(session, matching=with_schedule(session, matching))

    return context.read_many(session, work)


def with_schedule(session: Session, matching: RunFilter) -> RunFilter:
    """Return the filter with the id of the schedule that it names, if that schedule exists."""
    schedule_id = schedules.find_id(session, owner=matching.owner, name=matching.name)
    return matching if schedule_id is None else replace(matching, schedule_id=schedule_id)


def schedule_of(context: Context, run: RunInfo) -> ScheduleInfo | None:
    """Return the schedule of a run, or None if it was deleted. It may have another name now."""
    if (schedule_id := run.schedule_id) is None:
        return None
    row = context.read(
        None,
        lambda session: schedules.get_id(session, owner=run.owner, schedule_id=schedule_id),
    )
    return None if row is None else ScheduleInfo.of(row)


class ReadCalls(Calls):
    """The calls that read. Those of one owner see the rows of that owner only."""

    def list(
        self,
        *,
        order: str | None = None,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> Page[ScheduleInfo]:
        """Return one page of up to ``limit`` schedules that match.

        - The filters are described in ``ScheduleKeywords``: owner, owner_prefix, task, enabled,
          tag, state and name_prefix.
        - ``order`` is ``"name"``, or ``"next_run_at"``, which leaves out schedules without a next
          run. None orders by name, but overdue schedules by next_run_at. Schedules of several
          owners are ordered by owner and name. Schedules of all owners are ordered by name and
          owner if you pass ``name_prefix``.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 schedules. If few of these schedules match, the page has a
        cursor but fewer than ``limit`` schedules, or none. The list ends when the cursor is None.
        Raises InvalidArgumentError.

        >>> [schedule.name for schedule in mine.list(state="active")]
        ['digest']
        """
        given = self._in_scope(ScheduleKeywords, matching)
        return schedules_page(
            self._context,
            self._session,
            matching=schedule_filter(self._context, ScheduleFilter(**given), session=self._session),
            order=order,
            limit=limit,
            after=after,
        )

    def count(self, **matching: Unpack[ScheduleKeywords]) -> BoundedCount:
        """Return the number of matching schedules, up to 10,000. As text, it can be ``"10,000+"``.

        The filters are the same as in ``list()``. At most 10,001 schedules are read. If you filter
        by task, enabled or tag, the count of many schedules can therefore be a lower bound. Raises
        InvalidArgumentError.

        >>> str(mine.count(task="mail.digest"))
        '1'
        """
        given = self._in_scope(ScheduleKeywords, matching)
        found = schedule_filter(self._context, ScheduleFilter(**given), session=self._session)
        return count_schedules(self._context, self._session, matching=found)

    def get_run(self, run_id: str) -> RunInfo:
        """Return the run with this id, which is also its Celery task id.

        Raises NotFoundError, also for a run whose owner is outside the scope of the calls.

        >>> run = mine.run_now("digest")
        >>> mine.get_run(run.id).name
        'digest'
        """
        run_id = checks.check_run_id("run_id", run_id)

        def work(session: Session) -> RunInfo:
            run = runs.get(session, run_id=run_id)
            if run is None or self._owner not in {None, run.owner}:
                raise NotFoundError("run", run_id, owner=self._owner)
            return RunInfo.of(run)

        return self._read(work)

    def runs(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[RunKeywords],
    ) -> Page[RunInfo]:
        """Return one page of up to ``limit`` runs that match, the newest first.

        - ``name`` selects the runs of the schedules with this name. If the schedule exists, only
          its own runs are returned. The history of a deleted schedule can still be read under its
          name.
        - The other filters are described in ``RunKeywords``: owner, status, task, origin,
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
        with the newest run of each schedule first. Raises InvalidArgumentError.

        >>> _ = mine.run_now("digest")
        >>> [(run.name, run.status) for run in mine.runs(origin="manual")]
        [('digest', 'pending')]
        """
        checks.check_limit("limit", limit)
        found = checked(RunFilter(name=name, **self._in_scope(RunKeywords, matching)))
        return runs_page(self._context, self._session, matching=found, limit=limit, after=after)

    def count_runs(
        self,
        name: str | None = None,
        **matching: Unpack[RunKeywords],
    ) -> BoundedCount:
        """Return the number of matching runs, up to 10,000. As text, it can be ``"10,000+"``.

        The filters are the same as in ``runs()``. At most 10,001 runs are read, the newest first.
        If you filter by status, task or origin, the count in a long history can therefore be a
        lower bound. Raises InvalidArgumentError.
        """
        found = checked(RunFilter(name=name, **self._in_scope(RunKeywords, matching)))
        return count_runs(self._context, self._session, matching=found)

    def changes(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[ChangeKeywords],
    ) -> Page[ChangeInfo]:
        """Return one page of up to ``limit`` edits that match, newest first.

        - ``name`` selects the edits of the schedules with this name. ``name=""`` returns only edits
          of an owner, or of everything, such as a hold. The edits of a deleted schedule can be read
          under its name until dynbeat_audit_retention has passed.
        - The other filters are described in ``ChangeKeywords``: owner, actor, action, since, until.
          If you filter by a rare ``action``, or by a ``name`` for all owners, also pass ``since``,
          because the call reads the changes since that instant until ``limit`` of them match.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        Raises InvalidArgumentError.

        >>> _ = mine.bound(actor="alice", reason="too many at nine").update("digest", window=5)
        >>> [(change.action, change.actor) for change in mine.changes("digest")]
        [('update', 'alice'), ('create', '')]
        """
        found = checked(ChangeFilter(name=name, **self._in_scope(ChangeKeywords, matching)))
        read = partial(changes.page, matching=found)
        order = NEWEST_CHANGE
        return self._page(read, order, _changes, limit=limit, after=after)

    def get_batch(self, batch_id: str) -> BatchInfo:
        """Return the number of runs of a batch by status.

        ``runs(batch_id=...)`` lists the runs, and ``cancel_runs(batch_id=...)`` cancels those that
        have not started. Raises NotFoundError for a batch that has no run of the owner, or no
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
                raise NotFoundError("batch", batch_id, owner=self._owner)
            return BatchInfo(batch_id=batch_id, created_at=created_at(batch_id), counts=counts)

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
        ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises InvalidArgumentError.
        """
        read = partial(alerts.page, owner=self._owner, only_open=only_open)
        order = OLDEST_ALERT
        return self._page(read, order, _alerts, limit=limit, after=after, first=0)

    def usage(self, owner: str | None = None) -> Usage:
        """Return how many schedules and runs an owner has, and the limits on them.

        ``owner`` is needed only for the calls of all owners.

        The limits come from dynbeat_owner_limits. Paused and finished schedules count. Each count
        reads the index entries of the schedules, and of the runs that have or wait for a place.
        Raises InvalidArgumentError.

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

        Raises InvalidArgumentError.

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
        from celery_dynbeat.api import forecast  # noqa: PLC0415

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
        """Return why the schedule ran or did not run, as ``dynbeat show --why`` prints it.

        - ``at`` asks about the fire time in the minute that begins with this instant. The answer
          comes from the history and the audit. None asks about the present.
        - ``count`` is the number of last runs and of next fire times, at most 100.
        - ``owner`` is required in the calls across owners.

        The call imports the tasks of the application, because their options determine the queue.
        Raises NotFoundError and InvalidArgumentError.

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


def _changes(_session: Session, rows: Iterable[Change]) -> Iterable[ChangeInfo]:
    return map(ChangeInfo.of, rows)


def _alerts(_session: Session, rows: Iterable[Row]) -> Iterable[AlertInfo]:
    return map(AlertInfo.of, rows)
