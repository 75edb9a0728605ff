"""How much of their limits an owner or a group uses."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.edit import limits
from celery_dynbeat.api.filters import OwnerFilter
from celery_dynbeat.api.results import LimitUsage, Usage
from celery_dynbeat.common.owner_limits import NO_CAPS, Caps
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning.admission import Used, used_slots
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, slots


class UsageCalls(Calls):
    """The call for the limits of an owner or a group."""

    def usage(self, owner: str | None = None, *, session: Session | None = None) -> Usage:
        """Return how many schedules and runs an owner or a group has, and the limits on them.

        ``owner`` is needed only for the calls of all owners.

        The limits come from dynbeat_owner_limits, for the owner and for each of its groups, and
        from the settings per owner, such as dynbeat_max_schedules_per_owner. Paused and finished
        schedules count. Each count reads the index entries of the schedules, and of the runs that
        have or wait for a slot. Raises InvalidScheduleError.

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
    settings = settings or context.settings
    found = limits.max_schedules_of(settings, owner)
    names = {owner, *(limit.owner for limit in found)}

    def work(session: Session) -> tuple[Mapping[str, int], SlotUsage]:
        now = context.clock.now()
        slots = slot_usage(session, owner, settings=settings, now=now)
        return owners.count_unlocked(session, names), slots

    used, slots = context.read_many(session, work)
    return Usage(
        owner=owner,
        schedules=used[owner],
        limits=tuple(
            LimitUsage(
                owner=limit.owner, used=used[limit.owner], limit=limit.value, setting=limit.setting
            )
            for limit in found
        ),
        running=slots.used.running[owner],
        waiting=slots.waiting,
        run_limits=tuple(_run_limits(slots)),
    )


class SlotUsage(NamedTuple):
    """The limits on the runs of an owner, the slots in use, and the number of waiting runs."""

    caps: Caps
    used: Used
    waiting: int


def slot_usage(session: Session, owner: str, *, settings: Settings, now: datetime) -> SlotUsage:
    """Return the slots of an owner or a group. It reads nothing if no owner can have a limit."""
    if not settings.may_cap_runs:
        return SlotUsage(NO_CAPS, used_slots((), now=now), 0)
    caps = settings.caps_of(owner)
    rows = slots.admitted(session, [caps.scope if caps else owner])
    used = used_slots([(row.owner, row.admitted_at, row.has_ended) for row in rows], now=now)
    return SlotUsage(caps, used, slots.count_waiting(session, owner))


def _run_limits(slots: SlotUsage) -> Iterator[LimitUsage]:
    counts = ((slots.caps.running, slots.used.running), (slots.caps.starts, slots.used.starts))
    for found, used in counts:
        for limit in found:
            yield LimitUsage(
                owner=limit.owner,
                used=used[limit.owner],
                limit=limit.value,
                setting=limit.setting,
            )
