"""Delete the schedules of an owner, and its history if the caller asks for it.

An erasure works in batches, so that no transaction is long:

    1. stop      pause the schedules and revoke the runs that have not started; record the erasure
    2. history   delete runs and changes, BATCH_SIZE rows in each transaction
    3. end       delete what was added meanwhile, then the holds, the schedules and the owner's row

A process that dies in between leaves paused schedules. The same call completes the erasure. In the
caller's transaction the three steps are one.
"""

from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.edit import audit
from celery_dynbeat.common.states import Action
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, owners, runs, schedules
from celery_dynbeat.store.schedules import erasure

BATCH_SIZE = 1_000
_REASON = "the owner was deleted"
_HISTORY = (erasure.delete_runs, erasure.delete_changes)


def delete(context: Context, session: Session | None, *, owner: str) -> int:
    """Delete the schedules of ``owner`` in one transaction, and return their number."""

    def work(session: Session) -> int:
        now = _lock(context, session, owner=owner)
        audit.deleted_owner(context, session, owner=owner, now=now)
        return _delete_schedules(session, owner=owner, now=now)

    return context.write(session, work)


def erase(context: Context, session: Session | None, *, owner: str, progress: Progress) -> int:
    """Delete the schedules of ``owner`` and its history; return the number of schedules."""
    context.write(session, partial(_stop, context, owner=owner))
    _erase_history(context, session, owner=owner, progress=progress)
    return context.write(session, partial(_end, context, owner=owner))


def _erase_history(
    context: Context, session: Session | None, *, owner: str, progress: Progress
) -> int:
    """Delete the history of an owner in batches; return the number of rows."""
    deleted = 0
    for delete_some in _HISTORY:
        batch = partial(delete_some, owner=owner, limit=BATCH_SIZE)
        while count := context.write(session, batch):
            deleted += count
            progress(deleted)
    return deleted


def _stop(context: Context, session: Session, *, owner: str) -> None:
    now = _lock(context, session, owner=owner)
    erasure.pause_all(session, owner=owner, reason=_REASON, now=now)
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
