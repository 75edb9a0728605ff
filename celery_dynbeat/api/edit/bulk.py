"""The edits of all schedules that match a filter.

    1. read    a page of the schedules that match, without locks
    2. lock    the schedules of the page that still match, in the order of their ids
    3. edit    each of them as the call for one schedule does, and report an error with its schedule
    4. commit  with one notification of beat, then the next page

Each batch is one transaction. If the caller passes a transaction, all batches are part of it. With
``expected``, all pages are read before the first edit, and the number of schedules must be the
expected one. Schedules that match only later are then not changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.calls import Calls, Progress
from celery_dynbeat.api.edit import audit, edits, owner_zone
from celery_dynbeat.api.edit.fields import Changes
from celery_dynbeat.api.filters import ScheduleFilter
from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.results.bulk import BulkFailure, BulkResult
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import schedule_filters, schedule_pages
from celery_dynbeat.triggers import Trigger

#: Schedules that one transaction locks and edits.
BATCH_SIZE = 500
#: The largest value of ``expected``, because the ids of the schedules are in memory.
MAX_EXPECTED = 1_000_000
_PROGRESS_RULE = "must be a function that takes one number"

#: Edits a locked row at an instant, in the time zone of its owner. Returns whether the row changed.
_EditRow = Callable[[Session, Schedule, datetime, str], bool]


class BulkCalls(Calls):
    """The calls that edit all schedules that match a filter."""

    def pause_many(
        self,
        *,
        until: datetime | timedelta | None = None,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        reason: str | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> BulkResult:
        """Pause each matching schedule, like ``pause()``, and return the numbers of schedules.

        A paused schedule keeps its reason and its end, and counts as ``unchanged``.

        - ``until`` is when beat resumes the schedules: an aware datetime, or a timedelta from now.
          With None, they stay paused until they are resumed.
        - The filters are the same as in ``list()`` and ``count()``. To select all schedules, pass
          ``everything=True``. A call with neither raises InvalidScheduleError.
        - ``expected`` is the number of schedules that the caller has counted. If a different number
          matches, the call changes nothing and raises InvalidScheduleError with field
          ``"expected"``. Schedules that only match later are not changed.
        - ``progress`` is called after each batch with the number of schedules handled so far.

        Without ``session``, each batch of 500 schedules commits. If the call fails, repeat it.
        Schedules that change during the call are compared with the filter again. An error in one
        schedule is listed in ``failures`` and does not stop the others. Raises
        InvalidScheduleError.

        >>> mine.count(task="mail.digest").count
        1
        >>> mine.pause_many(task="mail.digest", expected=1, reason="mail is down").changed
        1
        """
        # One instant for all batches.
        end = edits.pause_end(until, now=self._now())

        def edit(session: Session, row: Schedule, now: datetime, _timezone: str) -> bool:
            if not row.enabled:
                return False
            with audit.recording(self._context, session, row, Action.PAUSE, now=now):
                why = current_actor().reason
                edits.pause(self._context, session, row, reason=why, now=now, until=end)
            return True

        work = _Work(edit, everything, expected, progress)
        with self._acting(reason):
            return self._edit_all(work, matching)

    def resume_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> BulkResult:
        """Resume each matching schedule, like ``resume()``, and return the numbers of schedules.

        A resume ends a pause by any actor, and a quarantine. Schedules without either count as
        ``unchanged``. The arguments are the same as for ``pause_many()``. Raises
        InvalidScheduleError.

        >>> _ = mine.pause("digest")
        >>> mine.resume_many(state="paused").changed
        1
        """

        def edit(session: Session, row: Schedule, now: datetime, _timezone: str) -> bool:
            version = row.version
            with audit.recording(self._context, session, row, Action.RESUME, now=now):
                edits.resume(self._context, session, row, now=now, notifies=False)
            return row.version != version

        work = _Work(edit, everything, expected, progress, notifies=True)
        with self._acting():
            return self._edit_all(work, matching)

    def update_many(
        self,
        changes: Changes,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> BulkResult:
        """Change the fields in ``changes`` for each matching schedule, like ``update()``.

        ``changes`` contains keywords of ``update()``, such as ``{"queue": "mail"}``. Schedules that
        already have these values count as ``unchanged``. The other arguments are the same as for
        ``pause_many()``. Raises InvalidScheduleError for a value that no schedule accepts.

        >>> mine.update_many({"queue": "slow"}, task="mail.digest").changed
        1
        """
        trigger, given = None, checks.copy_as(dict, "changes", changes)
        if not given:
            raise checks.invalid("changes", changes, "must have at least one field of a schedule")
        if "trigger" in given:
            trigger = given["trigger"] = edits.as_trigger(self._context, given["trigger"])
        edits.check_changes(self._context, given)

        def edit(session: Session, row: Schedule, now: datetime, timezone: str) -> bool:
            version, context = row.version, self._context
            with audit.recording(context, session, row, Action.UPDATE, now=now):
                edits.change(
                    context, session, row, given, now=now, timezone=timezone, notifies=False
                )
            return row.version != version

        work = _Work(edit, everything, expected, progress, notifies=True, trigger=trigger)
        with self._acting():
            return self._edit_all(work, matching)

    def delete_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleFilter],
    ) -> BulkResult:
        """Delete each matching schedule, like ``delete()``, and return the numbers of schedules.

        The arguments are the same as for ``pause_many()``. Raises InvalidScheduleError.

        >>> mine.delete_many(name_prefix="dig").changed
        1
        """

        def edit(session: Session, row: Schedule, now: datetime, _timezone: str) -> bool:
            edits.delete(self._context, session, row, now=now)
            return True

        work = _Work(edit, everything, expected, progress)
        with self._acting():
            return self._edit_all(work, matching)

    def _edit_all(self, work: "_Work", given: Mapping[str, Any]) -> BulkResult:
        in_scope = self._in_scope(ScheduleFilter, given)
        expected = work.expected
        _check_selection(given, everything=work.everything)
        if expected is not None:
            checks.check_integer("expected", expected, minimum=0, maximum=MAX_EXPECTED)
        if work.progress is not None and not callable(work.progress):
            raise checks.invalid("progress", work.progress, _PROGRESS_RULE)
        matching = queries.filter_of(self._context, **in_scope, session=self._session)
        batches = _batches(self._context, self._session, matching)
        if expected is not None:
            batches = iter(_checked(batches, expected))
        result = BulkResult()
        for keys in batches:
            batch = partial(_edit_batch, self._context, work, matching, keys)
            result = result.plus(self._context.write(self._session, batch))
            if work.progress is not None:
                work.progress(result.matched)
        return result


@dataclass(frozen=True, slots=True)
class _Work:
    """The edit that a call makes to each schedule, and the arguments of the call.

    ``trigger`` is the new one, or None if it does not change. ``notifies`` is true if the edit can
    make a schedule due earlier.
    """

    edit: _EditRow
    everything: bool
    expected: int | None
    progress: Progress | None
    notifies: bool = False
    trigger: Trigger | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    id: int
    owner: str


def _check_selection(given: Mapping[str, Any], *, everything: bool) -> None:
    if not isinstance(everything, bool):
        raise checks.invalid("everything", everything, "must be True or False")
    # name_prefix="" matches each name.
    is_filtered = any(value is not None for name, value in given.items() if name != "name_prefix")
    is_filtered = is_filtered or bool(given.get("name_prefix"))
    if not is_filtered and not everything:
        names = ", ".join(ScheduleFilter.__annotations__)
        rule = f"the call has no filter: give one of {names}, or everything=True"
        raise checks.invalid("everything", everything, rule)
    if is_filtered and everything:
        rule = "everything=True and a filter cannot be combined: leave one out"
        raise checks.invalid("everything", everything, rule)


def _batches(
    context: Context, session: Session | None, matching: schedule_filters.ScheduleFilter
) -> Iterator[Sequence[_Key]]:
    """Yield the keys of the schedules that match, BATCH_SIZE at a time."""
    order, after = queries.order_of(matching, None), None
    while True:
        read = partial(
            schedule_pages.page, matching=matching, order=order, after=after, limit=BATCH_SIZE
        )
        # Before the write: SQLite lets no other process write during a write.
        found = context.read_many(session, read)
        keys = [_Key(row.id, row.owner) for row in found.rows]
        if keys:
            yield keys
        after = found.last_key
        if after is None:
            return


def _checked(batches: Iterator[Sequence[_Key]], expected: int) -> Sequence[Sequence[_Key]]:
    """Return the batches. Raises InvalidScheduleError if they are not ``expected`` schedules."""
    number, checked = 0, []
    for keys in batches:
        number += len(keys)
        if number > expected:
            break
        checked.append(keys)
    if number != expected:
        found = f"more than {expected:,}" if number > expected else f"{number:,}"
        rule = f"{found} schedules match, and nothing was changed: count() them again"
        raise checks.invalid("expected", expected, rule)
    return checked


def _edit_batch(
    context: Context,
    work: _Work,
    matching: schedule_filters.ScheduleFilter,
    keys: Sequence[_Key],
    session: Session,
) -> BulkResult:
    zones: Mapping[str, str] | None = None
    if work.trigger is not None and work.trigger.needs_zone:
        # The owners before the schedules, in the order of all locks.
        names = {key.owner for key in keys}
        clocks = owner_zone.lock_many(context, session, names, zoned=names)
        zones = {owner: clock.timezone for owner, clock in clocks.items()}
    ids = [key.id for key in keys]
    rows = schedule_pages.lock_matching(session, ids, matching=matching)
    if zones is not None:
        # One that moved to another owner in the meantime needs the zone of an owner that is locked.
        rows = [row for row in rows if row.owner in zones]
    # Read after the rows are locked, because beat may have advanced them while this transaction
    # waited.
    now = context.clock.now()
    changed: list[Schedule] = []
    failures: list[BulkFailure] = []
    for row in rows:
        try:
            zone = context.settings.timezone if zones is None else zones[row.owner]
            if work.edit(session, row, now, zone):
                changed.append(row)
        except (InvalidScheduleError, InvalidTriggerError) as error:
            failures.append(BulkFailure(owner=row.owner, name=row.name, error=str(error)))
    if work.notifies:
        due = [row.next_run_at for row in changed if row.next_run_at is not None]
        context.notify_beat(session, next_run_at=min(due, default=None), now=now)
    return BulkResult(
        matched=len(rows),
        changed=len(changed),
        unchanged=len(rows) - len(changed) - len(failures),
        failed=len(failures),
        failures=tuple(failures),
    )
