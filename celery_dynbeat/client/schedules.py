"""The schedules of all owners."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Required

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks, edits, limits, queries
from celery_dynbeat.client.columns import ScheduleColumns
from celery_dynbeat.client.conversion import TaskLike, TriggerLike
from celery_dynbeat.client.fields import NewFields
from celery_dynbeat.client.owner import OwnerSchedules
from celery_dynbeat.client.views import Page
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    InvalidTriggerError,
    ScheduleExistsError,
)
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import owners, runs, schedules


class NewSchedule(NewFields, total=False):
    """One schedule for ``create_many``. Without ``owner`` it belongs to the application itself."""

    owner: str
    name: Required[str]
    task: Required[TaskLike]
    trigger: Required[TriggerLike]


class Schedules:
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
        now = self._context.clock.now()
        rows = [self._new_row(index, new, now) for index, new in enumerate(many)]
        _check_unique_names(rows)
        earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)

        def work(session: Session) -> int:
            limits.check_quota(self._context, session, Counter(row.owner for row in rows))
            schedules.add_many(session, [row.insert_values() for row in rows])
            self._context.notify_beat(session, next_run_at=earliest, now=now)
            return len(rows)

        return self._context.write(session, work)

    def delete_owner(self, owner: str, *, session: Session | None = None) -> int:
        """Delete all schedules of ``owner`` and return their number.

        Their runs that have not started are revoked. The history stays until it is pruned.
        """
        checks.check_name("owner", owner, empty=True)

        def work(session: Session) -> int:
            owners.delete_row(session, owner=owner)
            schedules.lock_ids_of_owner(session, owner=owner)
            now = self._context.clock.now()
            runs.revoke_owner(session, owner=owner, now=now, reason="the owner was deleted")
            return schedules.delete_of_owner(session, owner=owner)

        return self._context.write(session, work)

    def list(
        self,
        *,
        owner: str | None = None,
        task: str | None = None,
        enabled: bool | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page:
        """Return one page of up to ``limit`` schedules, ordered by owner and name.

        ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000. Without
        ``owner``, the schedules of all owners are returned. Raises InvalidScheduleError.
        """
        matching = schedules.ScheduleFilter(owner=owner, task=task, enabled=enabled, tag=tag)
        return queries.page(self._context, session, matching=matching, limit=limit, after=after)

    def _new_row(self, index: int, new: object, now: datetime) -> ScheduleColumns:
        field = f"schedule {index} of create_many"
        if not isinstance(new, Mapping):
            rule = "must be a mapping with name, task and trigger"
            raise checks.invalid(field, new, rule)
        new = checks.copy_as(dict, field, new)
        missing = {"name", "task", "trigger"} - new.keys()
        if missing:
            field = min(missing)
            rule = "name, task and trigger are required"
            msg = f"schedule {index} of create_many has no {field!r}: {rule}"
            raise InvalidScheduleError(msg, field=field)
        given = {key: value for key, value in new.items() if key not in _KEYS}
        try:
            return edits.new_row(
                self._context,
                owner=checks.check_name("owner", new.get("owner", ""), empty=True),
                name=checks.check_name("name", new["name"]),
                task=new["task"],
                trigger=new["trigger"],
                given=given,
                now=now,
            )
        except (InvalidScheduleError, InvalidTriggerError) as error:
            msg = f"schedule {index} of create_many: {error}"
            raise type(error)(msg, field=error.field) from error


_KEYS = frozenset({"owner", "name", "task", "trigger"})


def _check_unique_names(rows: Iterable[ScheduleColumns]) -> None:
    seen: set[tuple[str, str]] = set()
    for row in rows:
        key = (row.owner, row.name)
        if key in seen:
            raise ScheduleExistsError(owner=row.owner, name=row.name)
        seen.add(key)
