"""The schedules of a group of owners."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import acting_as
from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.control import erasure
from celery_dynbeat.api.control.alerts import AlertCalls
from celery_dynbeat.api.control.cancelling import CancelCalls
from celery_dynbeat.api.control.holds import HoldCalls
from celery_dynbeat.api.edit.bulk import BulkCalls
from celery_dynbeat.api.edit.quiet_hours import QuietHoursCalls
from celery_dynbeat.api.lists.changes import ChangeCalls
from celery_dynbeat.api.lists.forecast_calls import ForecastCalls
from celery_dynbeat.api.lists.history import RunCalls
from celery_dynbeat.api.lists.schedules import ListCalls
from celery_dynbeat.api.usage import UsageCalls
from celery_dynbeat.common.text import GROUP_END, MAX_COUNT, is_group
from celery_dynbeat.process.context import Context


class GroupSchedules(
    BulkCalls,
    HoldCalls,
    AlertCalls,
    CancelCalls,
    ListCalls,
    RunCalls,
    ChangeCalls,
    UsageCalls,
    ForecastCalls,
    QuietHoursCalls,
):
    """The schedules of all owners that begin with the name of a group, such as ``"org:7/"``.

    They are the owner's calls that concern several schedules. Like the calls of ``OwnerSchedules``,
    each call accepts ``session=``, and each change accepts ``actor=`` and ``reason=``.
    """

    def __init__(self, context: Context, group: str) -> None:
        if not is_group(checks.check_name("group", group)):
            rule = f"must end with {GROUP_END!r}, such as 'org:7/'; call for_owner() for one owner"
            raise checks.invalid("group", group, rule)
        super().__init__(context, group)
        self.group = group

    def delete_owners(
        self,
        *,
        erase_history: bool = False,
        expected: int | None = None,
        progress: Progress | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> int:
        """Delete all schedules of the owners of the group and all holds in it.

        Return the number of schedules. Their runs that have not started are revoked. The history
        stays until it is pruned.

        - ``erase_history``: True also deletes the runs, changes and requests of the owners. Running
          tasks continue, but their rows are deleted. One change remains. It contains the name of
          the group, and the actor and the reason of this call.
        - ``expected``: the number of schedules, as ``usage().schedules`` returns it. If the group
          has another number of schedules, the call changes nothing and raises InvalidScheduleError
          with field ``"expected"``.
        - ``progress`` is called after each batch with the number of deleted rows.

        If you do not pass ``session``, each owner and each batch of 1,000 rows commits. If the call
        fails, repeat it without ``expected``. The application must not create schedules for owners
        of the group during the call. Raises InvalidScheduleError.
        """
        if not isinstance(erase_history, bool):
            raise checks.invalid("erase_history", erase_history, "must be True or False")
        if progress is not None and not callable(progress):
            raise checks.invalid("progress", progress, "must be a function that takes one number")
        if expected is not None:
            self._check_number(session, expected)
        delete = erasure.erase_group if erase_history else erasure.delete_group
        report = progress or (lambda _deleted: None)
        with acting_as(actor=actor, reason=reason):
            return delete(self._context, session, group=self.group, progress=report)

    def _check_number(self, session: Session | None, expected: int) -> None:
        checks.check_integer("expected", expected, minimum=0, maximum=MAX_COUNT)
        found = self.usage(session=session).schedules
        if found != expected:
            rule = f"{self.group!r} has {found:,} schedules, and nothing was changed: count again"
            raise checks.invalid("expected", expected, rule)
