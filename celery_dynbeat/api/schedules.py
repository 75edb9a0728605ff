"""The schedules of all owners."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.control import erasure
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.shared import SharedCalls
from celery_dynbeat.process.context import Context


class Schedules(SharedCalls):
    """The calls that span owners.

    ``for_owner`` returns the calls for one owner, and ``bound`` the same calls in a transaction, or
    in the name of an actor.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, None)

    def for_owner(
        self,
        owner: str,
        *,
        session: Session | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> OwnerSchedules:
        """Return the schedules of ``owner``; ``""`` is the application itself.

        ``owner`` has at most 255 characters. The other arguments are those of ``bound``. Raises
        InvalidScheduleError for an invalid owner.
        """
        calls = OwnerSchedules(self._context, owner)
        calls = calls.bound(session=self._session, actor=self._actor, reason=self._reason)
        return calls.bound(session=session, actor=actor, reason=reason)

    def delete_owner(
        self,
        owner: str,
        *,
        erase_history: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete all schedules, holds and quiet hours of ``owner``; return the number of schedules.

        The runs of these schedules that have not started are revoked. The history is kept until it
        is pruned.

        If ``erase_history`` is true, the owner's runs and changes are also deleted.
        Running tasks continue, but their rows are deleted. One change remains, which contains the
        owner's name, and the actor and the reason. If the calls have no ``session``,
        each batch commits: first the schedules stop, and then the history is deleted. ``progress``
        is called after each batch with the number of deleted rows. If the call fails, repeat it.
        The application must not create schedules for the owner during the call.

        Raises InvalidScheduleError.
        """
        checks.check_owner(owner)
        if not isinstance(erase_history, bool):
            raise checks.invalid("erase_history", erase_history, "must be True or False")
        if progress is not None and not callable(progress):
            raise checks.invalid("progress", progress, "must be a function that takes one number")
        with self._acting():
            if not erase_history:
                return erasure.delete(self._context, self._session, owner=owner)
            report = progress or (lambda _deleted: None)
            return erasure.erase(self._context, self._session, owner=owner, progress=report)
