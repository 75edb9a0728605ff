"""How much of their limits an owner or a group uses."""

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.edit import limits
from celery_dynbeat.api.filters import OwnerFilter
from celery_dynbeat.api.results import LimitUsage, Usage
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners


class UsageCalls(Calls):
    """The call for the limits of an owner or a group."""

    def usage(self, owner: str | None = None, *, session: Session | None = None) -> Usage:
        """Return how many schedules an owner or a group has, and the limits on that number.

        ``owner`` is needed only for the calls of all owners.

        The limits come from dynbeat_owner_limits, for the owner and for each of its groups, and
        from dynbeat_max_schedules_per_owner. Paused and finished schedules count. Each count reads
        the index entries of the schedules. Raises InvalidScheduleError.

        >>> mine.usage().schedules, mine.usage().remaining
        (1, None)
        """
        name = self._in_scope(OwnerFilter, {"owner": owner}, accepts_group=True)["owner"]
        if name is None:
            raise invalid("owner", owner, "must be the name of an owner or a group")
        return usage_of(self._context, session, name)


def usage_of(
    context: Context, session: Session | None, owner: str, *, settings: Settings | None = None
) -> Usage:
    """Return the usage of an owner, or of a group, without locks."""
    found = limits.max_schedules_of(settings or context.settings, owner)
    names = {owner, *(limit.owner for limit in found)}
    used = context.read_many(session, lambda session: owners.count_unlocked(session, names))
    return Usage(
        owner=owner,
        schedules=used[owner],
        limits=tuple(
            LimitUsage(
                owner=limit.owner, used=used[limit.owner], limit=limit.value, setting=limit.setting
            )
            for limit in found
        ),
    )
