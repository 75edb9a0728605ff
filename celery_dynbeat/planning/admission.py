"""Decide which waiting runs get a slot. PURE.

The owners of a scope (a group with a limit, or one owner) take turns: each turn gives one slot to
the next owner, by name, whose limits allow it. No owner of a group therefore waits for all runs of
another owner.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from celery_dynbeat.common.owner_limits import Caps, Limit
from celery_dynbeat.common.text import groups_of

#: The span of max_starts_per_minute.
MINUTE = timedelta(minutes=1)
#: A run that is ``lost`` keeps its slot for this time. The slot is not in use, but it is used again
#: if the broker delivers the message of the run again. Brokers do that within hours.
LOST_KEPT = timedelta(days=1)


def is_recent(admitted_at: datetime, *, now: datetime) -> bool:
    """Return whether a start counts for max_starts_per_minute.

    A much later instant does not count, because the clock was set back.
    """
    return abs(now - admitted_at) < MINUTE


def is_prunable(
    admitted_at: datetime | None, *, has_ended: bool, lost_at: datetime | None, now: datetime
) -> bool:
    """Return whether no limit counts a slot any more.

    ``admitted_at`` is None if the run never got the slot. ``lost_at`` is when the run was lost.
    """
    if not has_ended or (admitted_at is not None and is_recent(admitted_at, now=now)):
        return False
    return lost_at is None or now - lost_at >= LOST_KEPT


class Used(NamedTuple):
    """The used slots of each owner and group, by name: unfinished runs, and runs of a minute."""

    running: Counter[str]
    starts: Counter[str]


def used_slots(admitted: Iterable[tuple[str, datetime, bool]], *, now: datetime) -> Used:
    """Count the slots, each with its owner, when it was admitted, and whether its run has ended."""
    running, starts = Counter[str](), Counter[str]()
    for owner, admitted_at, has_ended in admitted:
        names = (owner, *groups_of(owner))
        if not has_ended:
            running.update(names)
        if is_recent(admitted_at, now=now):
            starts.update(names)
    return Used(running, starts)


def free_slots(caps: Caps, used: Used, *, most: int) -> int:
    """Return how many further runs of an owner with ``caps`` may start, at most ``most``."""
    free: list[int] = [limit.value - used.running[limit.owner] for limit in caps.running]
    free += [limit.value - used.starts[limit.owner] for limit in caps.starts]
    return max(0, min([most, *free]))


def full_limit(caps: Caps, used: Used) -> Limit | None:
    """Return the limit for which a run of the owner waits, or None if it has a free slot."""
    for limits, counts in ((caps.running, used.running), (caps.starts, used.starts)):
        for limit in limits:
            if counts[limit.owner] >= limit.value:
                return limit
    return None


class Admission(NamedTuple):
    """The runs that get a slot, in order, and the owner that got the last one."""

    run_ids: Sequence[str]
    last_owner: str


def admit(
    waiting: Mapping[str, Sequence[str]], caps: Mapping[str, Caps], used: Used, *, last_owner: str
) -> Admission:
    """Give the free slots of one scope to its waiting runs.

    ``waiting`` contains the ids of the oldest waiting runs of each owner. Afterwards, ``used``
    includes the new slots.
    """
    owners = sorted(waiting)
    turns = deque([o for o in owners if o > last_owner] + [o for o in owners if o <= last_owner])
    left = {owner: deque(ids) for owner, ids in waiting.items()}
    admitted: list[str] = []
    while turns:
        owner = turns.popleft()
        if not left[owner] or not free_slots(caps[owner], used, most=1):
            # The slots of this admission are not freed during it, so the owner has no further turn.
            continue
        admitted.append(left[owner].popleft())
        names = (owner, *groups_of(owner))
        used.running.update(names)
        used.starts.update(names)
        last_owner = owner
        turns.append(owner)
    return Admission(admitted, last_owner)
