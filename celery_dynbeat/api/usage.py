"""How much of their limits owners use."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api.edit import limits
from celery_dynbeat.api.results import LimitUsage, Usage, WaitingOwner
from celery_dynbeat.common.owner_limits import Cap, Limit
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, places


def usage_of(
    context: Context, session: Session | None, owner: str, *, settings: Settings | None = None
) -> Usage:
    """Return the usage of an owner, without locks."""
    settings = settings or context.settings
    limit = limits.max_schedules_of(settings, owner)

    def work(session: Session) -> tuple[int, PlaceUsage]:
        used = place_usage(session, owner, settings=settings)
        return owners.count_unlocked(session, [owner])[owner], used

    schedules, used = context.read_many(session, work)
    cap = used.cap
    return Usage(
        owner=owner,
        schedules=schedules,
        limits=() if limit is None else (_limit_usage(limit, schedules),),
        running=used.running,
        waiting=used.waiting,
        run_limits=() if cap is None else (_limit_usage(cap.limit, used.running),),
        running_key=None if cap is None else cap.key,
    )


def _limit_usage(limit: Limit, used: int) -> LimitUsage:
    return LimitUsage(owner=limit.owner, used=used, limit=limit.value, setting=limit.setting)


class PlaceUsage(NamedTuple):
    """The limit on the runs of an owner, the places in use by its key, and the waiting runs."""

    cap: Cap | None
    running: int
    waiting: int


def place_usage(session: Session, owner: str, *, settings: Settings) -> PlaceUsage:
    """Return the places of an owner. It reads nothing if the owner can have no limit."""
    cap = settings.cap_of(owner) if settings.may_cap_runs else None
    if cap is None:
        return PlaceUsage(None, 0, 0)
    running = places.in_use(session, [cap.key])[cap.key]
    return PlaceUsage(cap, running, places.count_waiting(session, owner=owner))


def waiting_owners(
    context: Context, session: Session | None, *, settings: Settings
) -> Sequence[WaitingOwner]:
    """Return the owners whose runs wait for a place, by key and name."""

    def work(session: Session) -> Sequence[WaitingOwner]:
        found = places.waiting_owners(session)
        used = places.in_use(session, {each.running_key for each in found})
        return [
            WaitingOwner(
                owner=each.owner,
                waiting=each.waiting,
                since=each.since,
                running_key=each.running_key,
                running=used[each.running_key],
                max_running=None if cap is None else cap.limit.value,
            )
            for each in found
            for cap in [settings.cap_of(each.owner)]
        ]

    return context.read_many(session, work)
