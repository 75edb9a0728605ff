"""The rows of ``create_many``, each planned in the zone of its owner."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Required, overload

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit import audit, edits, limits, owner_zone, used_calendars
from celery_dynbeat.api.edit.conversion import TaskLike, TriggerLike
from celery_dynbeat.api.edit.fields import NewFields, require_trigger
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    InvalidTriggerError,
    ScheduleExistsError,
)
from celery_dynbeat.planning import Calendars
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.triggers import Trigger


class NewSchedule(NewFields, total=False):
    """One schedule for ``create_many``.

    If ``owner`` is not given, it belongs to the owner of the calls, or else to the application
    itself.
    """

    owner: str
    name: Required[str]
    task: Required[TaskLike]
    trigger: Required[TriggerLike]


class CreateManyCalls(Calls):
    """The call that creates many schedules."""

    def create_many(
        self,
        many: Iterable[NewSchedule],
    ) -> Sequence[ScheduleInfo]:
        """Create either all schedules or none, and return them in the same order.

        Beat is notified once. A schedule needs no ``owner`` if you call
        ``for_owner(owner).create_many()``. If you call ``create_many()`` of ``Schedules``, a
        schedule without an ``owner`` belongs to the application itself.

        Raises ScheduleExistsError if a name exists or occurs twice, and OwnerLimitError if an owner
        would exceed its limit. Raises InvalidScheduleError or InvalidTriggerError, with the index
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
            newest = schedules.newest_id(session)
            schedules.add_many(session, [row.insert_values() for row in rows])
            keys = [(row.owner, row.name) for row in rows]
            ids = schedules.ids_of(session, keys, after=newest)
            for row, key in zip(rows, keys, strict=True):
                row.id = ids[key]
            used = {**calendars, **owner_zone.calendars_of(clocks)}
            used_calendars.link(session, rows, used, is_new=True)
            audit.created(self._context, session, rows, now=batch.now)
            earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)
            self._context.notify_beat(session, next_run_at=earliest, now=batch.now)
            return CreatedSchedules(rows)

        return self._write(work)


_KEYS = frozenset({"owner", "name", "task", "trigger"})


@dataclass(slots=True)
class _New:
    """One schedule: the values that the caller gave, and the row planned with ``clock``.

    ``calendars`` are those that its trigger used.
    """

    owner: str
    name: str
    task: object
    trigger: Trigger
    given: Mapping[str, Any]
    clock: OwnerClock | None = None
    calendars: Calendars | None = None
    row: ScheduleColumns | None = None


class NewRows:
    """The new schedules of one call. All are planned from the same instant ``now``.

    Raises InvalidScheduleError or InvalidTriggerError, with the index of the invalid schedule, and
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
        self._owners = sorted({new.owner for new in self._all})
        _check_unique_names(self._all)

    def read(self, session: Session) -> tuple[Mapping[str, OwnerClock], Calendars]:
        """Return the clocks of the owners, without locks, and the calendars of the triggers."""
        clocks = owner_zone.read_many(self._context, session, self._owners)
        return clocks, self.read_calendars(session)

    def read_calendars(self, session: Session) -> Calendars:
        """Return the calendars that the triggers use."""
        names = {name for new in self._all for name in new.trigger.calendar_names}
        found = used_calendars.read_existing(session, names)
        for index, new in enumerate(self._all):
            if not found.keys() >= {*new.trigger.calendar_names}:
                with _naming_index(index):
                    used_calendars.check_exist(new.trigger.calendar_names, found)
        return found

    def lock_clocks(self, session: Session) -> Mapping[str, OwnerClock]:
        """Return the clocks of the owners, locked for this transaction."""
        zoned = {new.owner for new in self._all if new.trigger.needs_zone}
        return owner_zone.lock_many(self._context, session, self._owners, zoned=zoned)

    def plan(
        self, clocks: Mapping[str, OwnerClock], calendars: Calendars
    ) -> Sequence[ScheduleColumns]:
        """Return the rows.

        A row that is planned already is planned again for another clock, or with other days of its
        calendars.
        """
        return [
            self._planned(index, new, clocks[new.owner], calendars)
            for index, new in enumerate(self._all)
        ]

    def _planned(
        self, index: int, new: _New, clock: OwnerClock, calendars: Calendars
    ) -> ScheduleColumns:
        used = {name: calendars[name] for name in new.trigger.calendar_names}
        if new.row is not None and new.clock == clock and new.calendars == used:
            return new.row
        with _naming_index(index):
            new.row = edits.new_row(
                self._context,
                owner=new.owner,
                name=new.name,
                task=new.task,
                trigger=new.trigger,
                given=new.given,
                clock=clock,
                calendars=used,
                now=self.now,
            )
        new.clock, new.calendars = clock, used
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
            raise InvalidScheduleError(msg, field=field)
        with _naming_index(index):
            return _New(
                self._owner_of(new),
                checks.check_name("name", new["name"]),
                new["task"],
                edits.as_trigger(self._context, new["trigger"]),
                {key: value for key, value in new.items() if key not in _KEYS},
            )

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
    except (InvalidScheduleError, InvalidTriggerError) as error:
        msg = f"schedule {index} of create_many: {error}"
        raise type(error)(msg, field=error.field) from error


def _check_unique_names(all_new: Iterable[_New]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for index, new in enumerate(all_new):
        first = seen.setdefault((new.owner, new.name), index)
        if first != index:
            raise ScheduleExistsError(owner=new.owner, name=new.name, indexes=(first, index))
