"""Delete the schedules of an owner, and its history if the caller asks for it.

An erasure works in batches, so that no transaction is long:

    1. stop      pause the schedules and revoke the runs that have not started; record the erasure
    2. history   delete runs, slots, changes and requests, BATCH_SIZE rows in each transaction
    3. end       delete what was added meanwhile, then the holds, the schedules and the owner's row,
                 and take the owner out of messages about alerts

A process that dies in between leaves paused schedules. The same call completes the erasure. In the
caller's transaction the three steps are one.

For a group, the first and the last step are a transaction for each of its owners. The holds of the
group end last: until then its schedules stay held.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.edit import audit
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import is_group
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, owners, runs, schedules
from celery_dynbeat.store.runs import skips
from celery_dynbeat.store.schedules import erasure

BATCH_SIZE = 1_000
#: Owners and groups in a group whose names one query reads.
NAMES_AT_ONCE = 200
_REASON = "the owner was deleted"
_HISTORY = (
    erasure.delete_runs,
    erasure.delete_changes,
    erasure.delete_requests,
    erasure.delete_slots,
)


def delete(context: Context, session: Session | None, *, owner: str) -> int:
    """Delete the schedules of ``owner`` in one transaction, and return their number."""

    def work(session: Session) -> int:
        now = _lock(context, session, owner=owner)
        audit.deleted_owner(context, session, owner=owner, now=now)
        return _delete_schedules(session, owner=owner, now=now)

    return context.write(session, work)


def delete_group(
    context: Context, session: Session | None, *, group: str, progress: Progress
) -> int:
    """Delete the schedules of all owners of ``group``, and return their number."""
    _lock_groups(context, session, group=group)
    deleted = 0
    for owner in _owners_of(context, session, group=group):
        deleted += delete(context, session, owner=owner)
        progress(deleted)
    _delete_groups(context, session, group=group)
    return deleted


def erase_group(
    context: Context, session: Session | None, *, group: str, progress: Progress
) -> int:
    """Delete the schedules of all owners of ``group`` and their history.

    Return the number of schedules. One change records the erasure of the group.
    """
    _lock_groups(context, session, group=group)
    context.write(session, partial(_record_erasure, context, owner=group))
    for owner in _owners_of(context, session, group=group):
        context.write(session, partial(_pause, context, owner=owner))
    rows = _erase_history(context, session, owner=group, progress=progress)
    deleted = 0
    for owner in _owners_of(context, session, group=group):
        deleted += context.write(session, partial(_end, context, owner=owner, forgets=False))
        progress(rows + deleted)
    # Rows that were added during the erasure, even for owners without schedules.
    _erase_history(context, session, owner=group, progress=lambda _deleted: None)
    context.write(session, partial(erasure.forget_in_messages, owner=group))
    _delete_groups(context, session, group=group)
    return deleted


def _lock_groups(context: Context, session: Session | None, *, group: str) -> None:
    """Lock the rows of the groups in the caller's transaction, each group before its owners.

    Without a session, this does nothing: each owner is deleted in a separate transaction.
    """
    if session is None:
        return
    groups = {group, *filter(is_group, _names_in(context, session, group=group))}
    context.write(session, lambda session: owners.lock(session, groups))


def _owners_of(context: Context, session: Session | None, *, group: str) -> Iterator[str]:
    """Yield the owners of the group with schedules, holds or a time zone."""
    return (name for name in _names_in(context, session, group=group) if not is_group(name))


def _names_in(context: Context, session: Session | None, *, group: str) -> Iterator[str]:
    after = ""
    while True:
        read = partial(erasure.names_in, group=group, after=after, limit=NAMES_AT_ONCE)
        found = context.read_many(session, read)
        yield from found
        if len(found) < NAMES_AT_ONCE:
            return
        after = found[-1]


def _delete_groups(context: Context, session: Session | None, *, group: str) -> None:
    """Delete the holds and the rows of the group, and of the groups in it."""

    def work(session: Session, *, name: str) -> None:
        owners.delete_row(session, owner=name)
        holds.delete_of_owner(session, owner=name)

    for name in filter(is_group, _names_in(context, session, group=group)):
        context.write(session, partial(work, name=name))


def erase(context: Context, session: Session | None, *, owner: str, progress: Progress) -> int:
    """Delete the schedules of ``owner`` and its history; return the number of schedules."""
    context.write(session, partial(_stop, context, owner=owner))
    _erase_history(context, session, owner=owner, progress=progress)
    return context.write(session, partial(_end, context, owner=owner))


def _erase_history(
    context: Context, session: Session | None, *, owner: str, progress: Progress
) -> int:
    """Delete the history of an owner or a group in batches; return the number of rows."""
    deleted = 0
    for delete_some in _HISTORY:
        batch = partial(delete_some, owner=owner, limit=BATCH_SIZE)
        while count := context.write(session, batch):
            deleted += count
            progress(deleted)
    return deleted


def _stop(context: Context, session: Session, *, owner: str) -> None:
    _pause(context, session, owner=owner)
    _record_erasure(context, session, owner=owner)


def _pause(context: Context, session: Session, *, owner: str) -> None:
    now = _lock(context, session, owner=owner)
    erasure.pause_all(session, owner=owner, reason=_REASON, now=now)
    runs.revoke_owner(session, owner=owner, now=now, reason=_REASON)


def _record_erasure(context: Context, session: Session, *, owner: str) -> None:
    edit = audit.Edit(owner=owner, action=Action.ERASE)
    audit.record(context, session, [edit], now=context.clock.now())


def _end(context: Context, session: Session, *, owner: str, forgets: bool = True) -> int:
    now = _lock(context, session, owner=owner)
    for delete_some in _HISTORY:
        while delete_some(session, owner=owner, limit=BATCH_SIZE):
            pass
    number = _delete_schedules(session, owner=owner, now=now)
    if forgets:
        # This comes after the schedules, because no later message can name their alerts.
        erasure.forget_in_messages(session, owner=owner)
    return number


def _lock(context: Context, session: Session, *, owner: str) -> datetime:
    """Lock the owner and its schedules. Delete its row and its holds, which end with it."""
    owners.delete_row(session, owner=owner)
    holds.delete_of_owner(session, owner=owner)
    schedules.lock_ids_of_owner(session, owner=owner)
    return context.clock.now()


def _delete_schedules(session: Session, *, owner: str, now: datetime) -> int:
    runs.revoke_owner(session, owner=owner, now=now, reason=_REASON)
    skips.remove_future_of_owner(session, owner=owner, now=now)
    return schedules.delete_of_owner(session, owner=owner)
