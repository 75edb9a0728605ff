"""The time zone of an owner, which triggers without a zone follow."""

from collections.abc import Collection, Mapping

from sqlalchemy.orm import Session

from celery_dynbeat.api.edit import limits
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners
from celery_dynbeat.triggers import Trigger


def lock(context: Context, session: Session, owner: str, trigger: Trigger | None) -> str:
    """Return the zone of ``owner`` for a trigger that needs one, locked for this transaction.

    Call it before the lock of a schedule. For any other trigger nothing is read.
    """
    if trigger is None or not trigger.needs_zone:
        return context.settings.timezone
    return lock_many(context, session, [owner])[owner]


def lock_many(context: Context, session: Session, names: Collection[str]) -> Mapping[str, str]:
    """Return the zones by owner, locked for this transaction.

    With a quota the rows are locked exclusively: a later change of a share lock into an exclusive
    one could end in a deadlock.
    """
    limits.lock_owners(context, session, names)
    return _completed(context, names, owners.lock_timezones(session, names))


def read_many(context: Context, session: Session, names: Collection[str]) -> Mapping[str, str]:
    """Return the zones by owner, without locks."""
    return _completed(context, names, owners.timezones(session, names))


def _completed(
    context: Context, names: Collection[str], known: Mapping[str, str]
) -> Mapping[str, str]:
    return {owner: known.get(owner) or context.settings.timezone for owner in names}
