"""The calls that create or edit many schedules.

An edit of all schedules that match a filter works in batches:

    1. read    a page of the schedules that match, without locks
    2. lock    the schedules of the page that still match, in the order of their ids
    3. edit    each of them as the call for one schedule does, and report an error with its schedule
    4. commit  with one notification of beat, then the next page

Each batch is one transaction. If the caller passes a transaction, all batches are part of it. With
``expected``, all pages are read before the first edit, and the number of schedules must be the
expected one. Schedules that match only later are then not changed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Required, Unpack, overload

from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, checks, edits, limits, owner_clock
from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.controlling import ControlCalls
from celery_dynbeat.api.edits import Definition, RowEdit
from celery_dynbeat.api.fields import Changes, NewFields, TaskLike, TriggerLike, require_trigger
from celery_dynbeat.api.filters import ScheduleKeywords
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.api.reading import order_of_schedules, schedule_filter
from celery_dynbeat.api.results import BulkFailure, BulkResult, ScheduleInfo
from celery_dynbeat.api.timing import ScheduleColumns
from celery_dynbeat.common.errors import (
    ConflictError,
    InvalidArgumentError,
    ScheduleExistsError,
)
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.states import Action
from celery_dynbeat.planning import Calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import schedule_pages
from celery_dynbeat.triggers import Trigger

#: Schedules that one transaction locks and edits.
BATCH_SIZE = 500
#: The largest value of ``expected``, because the ids of the schedules are in memory.
MAX_EXPECTED = 1_000_000
PROGRESS_RULE = "must be a function that takes one number"


@dataclass(frozen=True, slots=True)
class BulkEdit:
    """The edit that a call makes to each schedule, and the arguments of the call.

    ``trigger`` is the new one, or None if it does not change.
    """

    action: Action
    edit: Callable[[RowEdit], None]
    everything: bool
    expected: int | None
    progress: Progress | None
    trigger: Trigger | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    id: int
    owner: str


def check_selection(given: Mapping[str, Any], *, everything: bool) -> None:
    """Raise InvalidArgumentError unless there is a filter, or ``everything``."""
    checks.check_flag("everything", everything)
    # name_prefix="" matches each name.
    is_filtered = any(value is not None for name, value in given.items() if name != "name_prefix")
    is_filtered = is_filtered or bool(given.get("name_prefix"))
    if not is_filtered and not everything:
        names = ", ".join(ScheduleKeywords.__annotations__)
        rule = f"the call has no filter: give one of {names}, or everything=True"
        raise checks.invalid("everything", everything, rule)
    if is_filtered and everything:
        rule = "everything=True and a filter cannot be combined: leave one out"
        raise checks.invalid("everything", everything, rule)


def batches(
    context: Context, session: Session | None, matching: ScheduleFilter
) -> Iterator[Sequence[_Key]]:
    """Yield the keys of the schedules that match, BATCH_SIZE at a time."""
    order, after = order_of_schedules(matching, None), None
    while True:
        read = partial(
            schedule_pages.page, matching=matching, order=order, after=after, limit=BATCH_SIZE
        )
        # Before the write: SQLite lets no other process write during a write.
        found = context.read_many(session, read)
        keys = [_Key(row.id, row.owner) for row in found.rows]
        if keys:
            yield keys
        after = found.last
        if after is None:
            return


def as_expected(batches: Iterator[Sequence[_Key]], expected: int) -> Sequence[Sequence[_Key]]:
    """Return the batches. Raises InvalidArgumentError if they are not ``expected`` schedules."""
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


def edit_batch(
    context: Context,
    work: BulkEdit,
    matching: ScheduleFilter,
    keys: Sequence[_Key],
    session: Session,
) -> BulkResult:
    """Edit the schedules of a batch that still match."""
    zones: Mapping[str, str] | None = None
    if work.trigger is not None and work.trigger.needs_zone:
        # The owners before the schedules, in the order of all locks.
        names = {key.owner for key in keys}
        clocks = owner_clock.lock_many(context, session, names, zoned=names)
        zones = {owner: clock.timezone for owner, clock in clocks.items()}
    ids = [key.id for key in keys]
    rows = schedule_pages.lock_matching(session, ids, matching=matching)
    if zones is not None:
        # One that moved to another owner in the meantime needs the zone of an owner that is locked.
        rows = [row for row in rows if row.owner in zones]
    # Read after the rows are locked, because beat may have advanced them while this transaction
    # waited.
    now = context.clock.now()
    changed = []
    failures: list[BulkFailure] = []
    for row in rows:
        try:
            zone = context.settings.timezone if zones is None else zones[row.owner]
            version = row.version
            edit = RowEdit(context, session, row, now=now, timezone=zone, notifies=False)
            with audit.recording(context, session, row, work.action, now=now):
                work.edit(edit)
            if row.version != version or work.action == Action.DELETE:
                changed.append(row)
        except (InvalidArgumentError, ConflictError) as error:
            failures.append(BulkFailure(owner=row.owner, name=row.name, error=str(error)))
    if work.action != Action.DELETE:
        due = [row.next_run_at for row in changed if row.next_run_at is not None]
        context.notify_beat(session, next_run_at=min(due, default=None), now=now)
    return BulkResult(
        matched=len(rows),
        changed=len(changed),
        unchanged=len(rows) - len(changed) - len(failures),
        failed=len(failures),
        failures=tuple(failures),
    )


class NewSchedule(NewFields, total=False):
    """One schedule for ``create_many``.

    If ``owner`` is not given, it belongs to the owner of the calls, or else to the application
    itself.
    """

    owner: str
    name: Required[str]
    task: Required[TaskLike]
    trigger: Required[TriggerLike]


_KEYS = frozenset({"owner", "name", "task", "trigger"})


@dataclass(slots=True)
class _New:
    """One schedule as the caller gave it, and the row that was planned with ``clock``."""

    given: Definition
    trigger: Trigger
    clock: OwnerClock | None = None
    row: ScheduleColumns | None = None


class NewRows:
    """The new schedules of one call. All are planned from the same instant ``now``.

    Raises InvalidArgumentError or InvalidTriggerError, with the index of the invalid schedule, and
    ScheduleExistsError if a name occurs twice.
    """

    def __init__(
        self,
        context: Context,
        many: Iterable[object],
        session: Session | None,
        *,
        owner: str | None,
    ) -> None:
        self._context, self._owner = context, owner
        self.now = context.now(session)
        self._all = [self._checked(index, new) for index, new in enumerate(many)]
        self._owners = sorted({new.given.owner for new in self._all})
        _check_unique_names(self._all)

    def read(self, session: Session) -> tuple[Mapping[str, OwnerClock], Calendars]:
        """Return the clocks of the owners, without locks, and the calendars of the triggers."""
        clocks = owner_clock.read_many(self._context, session, self._owners)
        return clocks, self.read_calendars(session)

    def read_calendars(self, session: Session) -> Calendars:
        """Return the calendars that the triggers use."""
        names = {name for new in self._all for name in new.trigger.calendar_names}
        found = owner_clock.existing_calendars(session, names)
        for index, new in enumerate(self._all):
            if not found.keys() >= {*new.trigger.calendar_names}:
                with _naming_index(index):
                    owner_clock.check_exist(new.trigger.calendar_names, found)
        return found

    def lock_clocks(self, session: Session) -> Mapping[str, OwnerClock]:
        """Return the clocks of the owners, locked for this transaction."""
        zoned = {new.given.owner for new in self._all if new.trigger.needs_zone}
        return owner_clock.lock_many(self._context, session, self._owners, zoned=zoned)

    def plan(
        self, clocks: Mapping[str, OwnerClock], calendars: Calendars
    ) -> Sequence[ScheduleColumns]:
        """Return the rows.

        A row that is planned already is planned again for another clock, or with other days of its
        calendars.
        """
        return [
            self._planned(index, new, clocks[new.given.owner], calendars)
            for index, new in enumerate(self._all)
        ]

    def _planned(
        self, index: int, new: _New, clock: OwnerClock, calendars: Calendars
    ) -> ScheduleColumns:
        clock = clock.with_calendars({name: calendars[name] for name in new.trigger.calendar_names})
        if new.row is not None and new.clock == clock:
            return new.row
        with _naming_index(index):
            new.row = edits.new_row(self._context, new.given, clock=clock, now=self.now)
        new.clock = clock
        return new.row

    def _checked(self, index: int, new: object) -> _New:
        field = f"schedule {index} of create_many"
        if not isinstance(new, Mapping):
            rule = "must be a mapping with name, task and trigger"
            raise checks.invalid(field, new, rule)
        new = checks.copy_as(dict, field, new)
        missing = {"name", "task", "trigger"} - new.keys()
        if missing:
            with _naming_index(index):
                require_trigger(new)
            field = min(missing)
            rule = "name, task and trigger are required"
            msg = f"schedule {index} of create_many has no {field!r}: {rule}"
            raise InvalidArgumentError(msg, field=field)
        with _naming_index(index):
            owner, name = self._owner_of(new), checks.check_name("name", new["name"])
            trigger = edits.as_trigger(self._context, new["trigger"])
            fields = {key: value for key, value in new.items() if key not in _KEYS}
            given = Definition(
                owner=owner, name=name, task=new["task"], trigger=trigger, fields=fields
            )
            return _New(given, trigger)

    def _owner_of(self, new: Mapping[str, Any]) -> str:
        owner = checks.check_owner(new.get("owner", self._owner or ""))
        if self._owner is not None and owner != self._owner:
            rule = f"is outside the scope of these calls, {self._owner!r}: call for_owner() with it"
            raise checks.invalid("owner", owner, rule)
        return owner


class CreatedSchedules(Sequence[ScheduleInfo]):
    """What ``create_many`` made. Each schedule is built when it is read, as there can be many."""

    def __init__(self, rows: Sequence[ScheduleColumns]) -> None:
        self._rows = rows

    @overload
    def __getitem__(self, index: int) -> ScheduleInfo: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ScheduleInfo]: ...

    def __getitem__(self, index: int | slice) -> ScheduleInfo | Sequence[ScheduleInfo]:
        if isinstance(index, slice):
            return CreatedSchedules(self._rows[index])
        return ScheduleInfo.of(self._rows[index])

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} created schedules>"


@contextmanager
def _naming_index(index: int) -> Iterator[None]:
    """Make each error of the block name the index of the schedule."""
    try:
        yield
    except InvalidArgumentError as error:
        raise error.saying(f"schedule {index} of create_many: {error}") from error


def _check_unique_names(all_new: Iterable[_New]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for index, new in enumerate(all_new):
        first = seen.setdefault((new.given.owner, new.given.name), index)
        if first != index:
            raise ScheduleExistsError(
                owner=new.given.owner, name=new.given.name, indexes=(first, index)
            )


class ManyCalls(ControlCalls):
    """The calls on many schedules. Those of one owner concern only that owner."""

    def create_many(
        self,
        many: Iterable[NewSchedule],
    ) -> Sequence[ScheduleInfo]:
        """Create either all schedules or none, and return them in the same order.

        Beat is notified once. A schedule needs no ``owner`` if you call
        ``for_owner(owner).create_many()``. If you call ``create_many()`` of ``Schedules``, a
        schedule without an ``owner`` belongs to the application itself.

        Raises ScheduleExistsError if a name exists or occurs twice, and LimitError if an owner
        would exceed its limit. Raises InvalidArgumentError or InvalidTriggerError, with the index
        of the invalid schedule in the message (the first is 0).
        """
        if not isinstance(many, Iterable):
            raise checks.invalid("many", many, "must be an iterable of mappings")
        batch = NewRows(self._context, many, self._session, owner=self._owner)
        if self._session is None:
            # Planned before the transaction, so that it holds its locks for a shorter time.
            batch.plan(*self._read(batch.read))

        def work(session: Session) -> Sequence[ScheduleInfo]:
            clocks, calendars = batch.lock_clocks(session), batch.read_calendars(session)
            rows = batch.plan(clocks, calendars)
            limits.check_quota(self._context, session, Counter(row.owner for row in rows))
            used = {**calendars, **owner_clock.calendars_of(clocks)}
            edits.insert(self._context, session, rows, calendars=used, now=batch.now)
            return CreatedSchedules(rows)

        return self._write(work)

    def pause_many(
        self,
        *,
        until: datetime | timedelta | None = None,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        reason: str | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult:
        """Pause each matching schedule, like ``pause()``, and return the numbers of schedules.

        A paused schedule keeps its reason and its end, and counts as ``unchanged``.

        - ``until`` is when beat resumes the schedules: an aware datetime, or a timedelta from now.
          With None, they stay paused until they are resumed.
        - The filters are the same as in ``list()`` and ``count()``. To select all schedules, pass
          ``everything=True``. A call with neither raises InvalidArgumentError.
        - ``expected`` is the number of schedules that the caller has counted. If a different number
          matches, the call changes nothing and raises InvalidArgumentError with field
          ``"expected"``. Schedules that only match later are not changed.
        - ``progress`` is called after each batch with the number of schedules handled so far.

        Without ``session``, each batch of 500 schedules commits. If the call fails, repeat it.
        Schedules that change during the call are compared with the filter again. An error in one
        schedule is listed in ``failures`` and does not stop the others. Raises
        InvalidArgumentError.

        >>> mine.count(task="mail.digest").count
        1
        >>> mine.pause_many(task="mail.digest", expected=1, reason="mail is down").changed
        1
        """
        # One instant for all batches.
        end = edits.pause_end(until, now=self._now())

        def pause(edit: RowEdit) -> None:
            if edit.row.enabled:
                edit.pause(end)

        work = BulkEdit(Action.PAUSE, pause, everything, expected, progress)
        with self._acting(reason):
            return self._edit_all(work, matching)

    def resume_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult:
        """Resume each matching schedule, like ``resume()``, and return the numbers of schedules.

        A resume ends a pause by any actor, and a quarantine. Schedules without either count as
        ``unchanged``. The arguments are the same as for ``pause_many()``. Raises
        InvalidArgumentError.

        >>> _ = mine.pause("digest")
        >>> mine.resume_many(state="paused").changed
        1
        """
        work = BulkEdit(Action.RESUME, RowEdit.resume, everything, expected, progress)
        with self._acting():
            return self._edit_all(work, matching)

    def update_many(
        self,
        changes: Changes,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult:
        """Change the fields in ``changes`` for each matching schedule, like ``update()``.

        ``changes`` contains keywords of ``update()``, such as ``{"queue": "mail"}``. Schedules that
        already have these values count as ``unchanged``. The other arguments are the same as for
        ``pause_many()``. Raises InvalidArgumentError for a value that no schedule accepts.

        >>> mine.update_many({"queue": "slow"}, task="mail.digest").changed
        1
        """
        given = checks.copy_as(dict, "changes", changes)
        if not given:
            raise checks.invalid("changes", changes, "must have at least one field of a schedule")
        trigger = None
        if "trigger" in given:
            trigger = given["trigger"] = edits.as_trigger(self._context, given["trigger"])
        edits.check_changes(self._context, given)

        def change(edit: RowEdit) -> None:
            edit.change(given)

        work = BulkEdit(Action.UPDATE, change, everything, expected, progress, trigger)
        with self._acting():
            return self._edit_all(work, matching)

    def delete_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult:
        """Delete each matching schedule, like ``delete()``, and return the numbers of schedules.

        The arguments are the same as for ``pause_many()``. Raises InvalidArgumentError.

        >>> mine.delete_many(name_prefix="dig").changed
        1
        """
        work = BulkEdit(Action.DELETE, RowEdit.delete, everything, expected, progress)
        with self._acting():
            return self._edit_all(work, matching)

    def _edit_all(self, work: BulkEdit, given: Mapping[str, Any]) -> BulkResult:
        in_scope = self._in_scope(ScheduleKeywords, given)
        expected = work.expected
        check_selection(given, everything=work.everything)
        if expected is not None:
            checks.check_integer("expected", expected, minimum=0, maximum=MAX_EXPECTED)
        if work.progress is not None and not callable(work.progress):
            raise checks.invalid("progress", work.progress, PROGRESS_RULE)
        matching = schedule_filter(self._context, ScheduleFilter(**in_scope), session=self._session)
        found = batches(self._context, self._session, matching)
        if expected is not None:
            found = iter(as_expected(found, expected))
        result = BulkResult()
        for keys in found:
            batch = partial(edit_batch, self._context, work, matching, keys)
            result = result.plus(self._context.write(self._session, batch))
            if work.progress is not None:
                work.progress(result.matched)
        return result
