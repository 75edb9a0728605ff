"""The calls that an owner and all owners have: each is defined once for both."""

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from celery_dynbeat.client import alerting, audit, checks, limits
from celery_dynbeat.client.alerts import AlertCalls
from celery_dynbeat.client.cancelling import CancelCalls
from celery_dynbeat.client.changes import ChangeCalls
from celery_dynbeat.client.history import RunCalls
from celery_dynbeat.client.holds import HoldCalls
from celery_dynbeat.client.lists import ListCalls
from celery_dynbeat.client.new_rows import CreatedSchedules, NewRows, NewSchedule
from celery_dynbeat.client.reruns import RerunCalls
from celery_dynbeat.client.views import ScheduleInfo
from celery_dynbeat.store import schedules


class SharedCalls(AlertCalls, CancelCalls, ChangeCalls, HoldCalls, ListCalls, RunCalls, RerunCalls):
    """The calls that an owner and all owners have."""

    def create_many(
        self,
        many: Iterable[NewSchedule],
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> Sequence[ScheduleInfo]:
        """Create all schedules or none, notify beat once, and return them in the same order.

        The schedules of ``for_owner(owner)`` need no ``owner``. Those of ``Schedules`` without an
        ``owner`` belong to the application itself.

        Raises ScheduleExistsError if a name exists or occurs twice, and OwnerLimitError if an owner
        would exceed its quota. Raises InvalidScheduleError or InvalidTriggerError, with the index
        of the invalid schedule in the message (the first is 0).
        """
        if not isinstance(many, Iterable):
            raise checks.invalid("many", many, "must be an iterable of mappings")
        batch = NewRows(self._context, many, session, owner=self._owner)
        if session is None:
            # Planned before the transaction, so that it holds its locks for a shorter time.
            batch.plan(self._context.read(None, batch.read_timezones))

        def work(session: Session) -> Sequence[ScheduleInfo]:
            rows = batch.plan(batch.lock_timezones(session))
            limits.check_quota(self._context, session, Counter(row.owner for row in rows))
            schedules.add_many(session, [row.insert_values() for row in rows])
            ids = schedules.ids_of(session, [(row.owner, row.name) for row in rows])
            for row in rows:
                row.id = ids[row.owner, row.name]
            alerting.watch_new(self._context.settings, session, rows, now=batch.now)
            audit.created(self._context, session, rows, now=batch.now)
            earliest = min((row.next_run_at for row in rows if row.next_run_at), default=None)
            self._context.notify_beat(session, next_run_at=earliest, now=batch.now)
            return CreatedSchedules(rows)

        return self._write(session, work, actor=actor, reason=reason)
