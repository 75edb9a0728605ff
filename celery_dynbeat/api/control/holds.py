"""Hold and release all schedules, or the schedules of one owner.

A hold is one row for each scope. Holding does not read schedules. Beat takes the due schedules of a
held owner out of its index, and a release makes them due.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.results import BoundedCount, HoldInfo, Page, cursors
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.api.results.page import PAGE_SIZE
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.models import Hold
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: The order of the pages, as their cursors name it.
_OLDEST = "oldest_hold"
#: The fields of a hold that the row has, and that a change records.
_FIELDS = ("actor", "reason", "created_at", "until_at")


class HoldCalls(Calls):
    """The calls for holds."""

    def hold(
        self,
        *,
        until: datetime | None = None,
        reason: str | None = None,
    ) -> HoldInfo:
        """Stop the schedules of the owner, or of all owners, until ``release`` or ``until``.

        - Beat sends no fire times. Reruns, backfills, retries that beat sends, and runs that wait
          for something else wait as well. ``run_now`` is refused. Runs whose message beat has
          recorded still start.
        - After the hold, ``catch_up`` decides which missed fire times are sent, as after downtime.
        - A schedule's own pause does not change.
        - ``until`` is an aware datetime in the future. ``reason`` has at most 1,024 characters.
        - There is one hold of an owner, and one of everything. A second call replaces the reason,
          the end and the actor of the hold. The owner is held while its hold or the hold of
          everything is in force.

        The cost does not depend on the number of schedules. A batch that beat has claimed before
        the commit is still sent. Raises InvalidScheduleError.

        >>> mine.bound(actor="alice").hold(reason="ticket 12").reason
        'ticket 12'
        >>> [hold.actor for hold in mine.holds()]
        ['alice']
        """
        until = checks.check_instant("until", until)

        def work(session: Session) -> HoldInfo:
            now = self._context.clock.now()
            if until is not None and until <= now:
                raise checks.invalid("until", until, f"must be later than now, {now}, or None")
            return _hold(self._context, session, owner=self._owner, until=until)

        return self._write(work, reason=reason)

    def release(self) -> HoldInfo | None:
        """End the hold of the owner, or of everything. Return it, or None if there is none.

        It does not matter which actor made the hold. Releasing an owner does not end the hold of
        everything, and releasing everything does not end the hold of an owner. Raises
        InvalidScheduleError.

        >>> _ = mine.bound(actor="alice").hold()
        >>> mine.bound(actor="bob").release().actor
        'alice'
        """

        def work(session: Session) -> HoldInfo | None:
            return _release(self._context, session, owner=self._owner)

        return self._write(work)

    def holds(
        self,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
    ) -> Page[HoldInfo]:
        """Return one page of up to ``limit`` holds in force, the oldest first.

        For an owner, the page contains the hold of everything and the hold of the owner. Each hold
        counts the schedules that it stops and the runs that wait for its end. ``after`` is the
        ``cursor`` of the previous page. ``limit`` is at most 1,000. Raises InvalidScheduleError.
        """
        check_limit("limit", limit)
        key = cursors.decode_id(after, order=_OLDEST)
        now = self._now()

        def work(session: Session) -> Page[HoldInfo]:
            if self._owner is None:
                rows = holds.page(session, now=now, after=key, limit=limit + 1)
            else:
                found = holds.in_force(session, owner=self._owner, now=now)
                rows = sorted((row for row in found if row.id > key), key=lambda row: row.id)
            is_last = len(rows) <= limit
            cursor = None if is_last else cursors.encode(_OLDEST, (rows[limit - 1].id,))
            return Page(_counted(session, rows[:limit]), cursor)

        return self._read_many(work)


def _counted(session: Session, rows: Sequence[Hold]) -> tuple[HoldInfo, ...]:
    schedules = holds.count_schedules(session, rows)
    waiting, is_more = holds.count_waiting_runs(session) if rows else ({}, False)

    def counted(row: Hold) -> HoldInfo:
        held = schedules[row.id]
        runs = sum(waiting.values()) if row.owner is None else waiting.get(row.owner, 0)
        return replace(
            HoldInfo.of(row),
            schedules=BoundedCount(count=held.number, exact=not held.is_more),
            waiting_runs=BoundedCount(count=min(runs, holds.COUNT_LIMIT), exact=not is_more),
        )

    return tuple(map(counted, rows))


def _hold(
    context: Context, session: Session, *, owner: str | None, until: datetime | None
) -> HoldInfo:
    actor, reason = current_actor().actor, current_actor().reason
    while (row := holds.lock(session, owner=owner)) is None:
        now = context.clock.now()
        made = HoldInfo(owner=owner, actor=actor, reason=reason, created_at=now, until_at=until)
        values = {name: getattr(made, name) for name in _FIELDS}
        if holds.add(session, owner=owner, values=values):
            _started(context, session, made)
            return made
    # After the lock, for which this transaction may have waited.
    now = context.clock.now()
    before = HoldInfo.of(row)
    is_over = before.until_at is not None and before.until_at <= now
    row.actor, row.reason, row.until_at = actor, reason, until
    if is_over:
        row.created_at = now
    session.flush()
    made = HoldInfo.of(row)
    if is_over:
        _started(context, session, made)
        return made
    audit.record(context, session, [_edit(Action.HOLD, before=before, after=made)], now=now)
    # The new end can be earlier.
    _on_shorter(context, session, owner=owner, end=until or holds.NEVER, now=now)
    return made


def _started(context: Context, session: Session, made: HoldInfo) -> None:
    _emit(session, events.HoldStarted, made)
    edit = _edit(Action.HOLD, before=None, after=made)
    audit.record(context, session, [edit], now=made.created_at)


def _release(context: Context, session: Session, *, owner: str | None) -> HoldInfo | None:
    row = holds.lock(session, owner=owner)
    # After the lock, for which this transaction may have waited.
    now = context.clock.now()
    if row is None or (row.until_at is not None and row.until_at <= now):
        return None
    ended = HoldInfo.of(row)
    session.expunge(row)
    holds.delete_ids(session, [row.id])
    edit = _edit(Action.RELEASE, before=ended, after=None)
    audit.record(context, session, [edit], now=now)
    _emit(session, events.HoldReleased, ended)
    _on_shorter(context, session, owner=owner, end=None, now=now)
    return ended


def _emit(
    session: Session, event_type: type[events.HoldStarted | events.HoldReleased], hold: HoldInfo
) -> None:
    if has_listeners(event_type):
        event = event_type(
            owner=hold.owner, actor=hold.actor, reason=hold.reason, until=hold.until_at
        )
        emit_on_commit(session, event)


def _edit(action: Action, *, before: HoldInfo | None, after: HoldInfo | None) -> audit.Edit:
    """Return the edit of one hold for the audit."""
    some = after or before
    assert some is not None  # noqa: S101 - one of both is given
    return audit.Edit(
        owner=some.owner,
        action=action,
        old=None if before is None else _audited(before),
        new=None if after is None else _audited(after),
        reason=some.reason,
    )


def _audited(hold: HoldInfo) -> dict[str, Any]:
    return {name: as_json(getattr(hold, name)) for name in _FIELDS}


def _on_shorter(
    context: Context, session: Session, *, owner: str | None, end: datetime | None, now: datetime
) -> None:
    """Make the waiting schedules of the owner due at the end of its hold, and wake beat."""
    if owner is not None:
        holds.move_held(session, owner=owner, now=now, end=end)
    context.notifier.notify(session)
