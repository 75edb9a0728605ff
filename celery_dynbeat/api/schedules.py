"""The schedules of all owners.

An erasure of an owner works in batches, so that no transaction is long:

    1. stop      pause the schedules and revoke the runs that have not started; record the erasure
    2. history   delete runs and changes, BATCH_SIZE rows in each transaction
    3. end       delete what was added meanwhile, then the holds, the schedules and the owner's row

A process that dies in between leaves paused schedules. The same call completes the erasure. In the
caller's transaction the three steps are one.
"""

from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, checks
from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.many import ManyCalls
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.common.states import Action
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import changes, holds, owners, runs, schedules

BATCH_SIZE = 1_000
_REASON = "the owner was deleted"
_HISTORY = (runs.delete_of_owner, changes.delete_of_owner)


def _delete_owner(context: Context, session: Session | None, *, owner: str) -> int:
    """Delete the schedules of ``owner`` in one transaction, and return their number."""

    def work(session: Session) -> int:
        now = _lock(context, session, owner=owner)
        audit.deleted_owner(context, session, owner=owner, now=now)
        return _delete_schedules(session, owner=owner, now=now)

    return context.write(session, work)


def _erase(context: Context, session: Session | None, *, owner: str, progress: Progress) -> int:
    """Delete the schedules of ``owner`` and its history; return the number of schedules."""
    context.write(session, partial(_stop, context, owner=owner))
    _erase_history(context, session, owner=owner, progress=progress)
    return context.write(session, partial(_end, context, owner=owner))


def _erase_history(
    context: Context, session: Session | None, *, owner: str, progress: Progress
) -> None:
    """Delete the history of an owner in batches."""
    deleted = 0
    for delete_some in _HISTORY:
        batch = partial(delete_some, owner=owner, limit=BATCH_SIZE)
        while count := context.write(session, batch):
            deleted += count
            progress(deleted)


def _stop(context: Context, session: Session, *, owner: str) -> None:
    now = _lock(context, session, owner=owner)
    schedules.pause_all(session, owner=owner, reason=_REASON, now=now)
    runs.revoke_owner(session, owner=owner, now=now, reason=_REASON)
    edit = audit.Edit(owner=owner, action=Action.ERASE)
    audit.record(context, session, [edit], now=context.clock.now())


def _end(context: Context, session: Session, *, owner: str) -> int:
    now = _lock(context, session, owner=owner)
    for delete_some in _HISTORY:
        while delete_some(session, owner=owner, limit=BATCH_SIZE):
            pass
    return _delete_schedules(session, owner=owner, now=now)


def _lock(context: Context, session: Session, *, owner: str) -> datetime:
    """Lock the owner and its schedules. Delete its row and its holds, which end with it."""
    owners.delete_row(session, owner=owner)
    holds.delete_of_owner(session, owner=owner)
    schedules.lock_ids_of_owner(session, owner=owner)
    return context.clock.now()


def _delete_schedules(session: Session, *, owner: str, now: datetime) -> int:
    runs.revoke_owner(session, owner=owner, now=now, reason=_REASON)
    return schedules.delete_of_owner(session, owner=owner)


class Schedules(ManyCalls):
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
        InvalidArgumentError for an invalid owner.
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

        Raises InvalidArgumentError.
        """
        checks.check_owner(owner)
        checks.check_flag("erase_history", erase_history)
        if progress is not None and not callable(progress):
            raise checks.invalid("progress", progress, "must be a function that takes one number")
        with self._acting():
            if not erase_history:
                return _delete_owner(self._context, self._session, owner=owner)
            report = progress or (lambda _deleted: None)
            return _erase(self._context, self._session, owner=owner, progress=report)
