"""Admit waiting runs: give the free slots of owners and groups to their oldest waiting runs.

    waiting (pending, no overdue_at) -> a slot is free -> admitted (overdue) -> the sweep sends it

A slot is in use while it is admitted and its run has not ended. Slots are counted from the rows of
the runs, so a worker or a pool process that dies leaks no slot: the slot is free once the run is
lost. A run keeps its slot while it waits for a retry. With overlap="skip" or "buffer_one", a run
gets no slot while another run of its schedule has one.

Two beats never admit runs of one scope at the same time: each locks the row of the scope. After a
crash before the commit, the runs wait as before. After a crash that follows the commit, the sweep
of any beat sends them. An owner whose limits are not known, because a function of
dynbeat_owner_limits fails, keeps its waiting runs, because sending all of them could not be undone.
If these runs end meanwhile, their slots are deleted.

Waiting runs are in no index that a claim or a sweep reads. One pass admits runs of a bounded number
of owners, with one query for each owner that has a free slot.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat.sweep import is_previous
from celery_dynbeat.common.owner_limits import Caps
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import groups_of, is_group
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Origin
from celery_dynbeat.planning import expires_at
from celery_dynbeat.planning.admission import (
    Used,
    admit,
    free_slots,
    full_limit,
    is_recent,
    used_slots,
)
from celery_dynbeat.store import runs, slots
from celery_dynbeat.store.runs import unfinished

if TYPE_CHECKING:
    from celery_dynbeat.db.statements import Row
    from celery_dynbeat.store.slots import AdmittedSlot, WaitingRun

#: Beat looks for free slots at this interval while runs wait.
INTERVAL = timedelta(milliseconds=500)
NOW = timedelta(0)
#: The maximum number of owners with waiting runs that one pass reads, in total and for one group.
MAX_OWNERS = 100
#: The maximum number of runs of one owner that one pass admits, of expired runs that it marks, and
#: of slots that it frees.
MAX_RUNS = 200
#: The number of further waiting runs of an owner that are read, because some may be revoked, locked
#: or wait for a run of their schedule. If these are more, up to MAX_PASSED_OVER runs are read.
SPARE, MAX_PASSED_OVER = 10, 1_000


class Pass(NamedTuple):
    """The result of one pass: admitted runs, and the last owner if there are more owners.

    ``knows_limits`` is false if the limits of an owner could not be read.
    """

    admitted: int
    is_waiting: bool
    after: str
    knows_limits: bool = True


class Admission:
    """Admits runs after new runs, after a change, and regularly while runs wait."""

    def __init__(self, *, database: Database, settings: Settings, idle_interval: timedelta) -> None:
        self._database, self._settings = database, settings
        self._idle_interval = idle_interval
        self._next_at: datetime | None = None
        self._after = ""

    def wait(self, now: datetime) -> timedelta:
        """Return how long beat may sleep before the next pass."""
        return NOW if self._next_at is None else max(NOW, self._next_at - now)

    def expect(self) -> None:
        """Make the next pass due at once: runs may have been recorded."""
        self._next_at = None

    def run(self, now: datetime) -> int:
        """Admit runs if it is time; return their number."""
        at = self._next_at
        # An instant far after ``now`` means that the clock was set back.
        if at is not None and now < at <= now + self._idle_interval:
            return 0
        done = Pass(0, is_waiting=False, after="")
        # Read before any lock, because nothing is locked if no run waits.
        if self._after or self._database.read(runs.has_waiting):
            work = partial(
                admit_waiting, now=now, settings=self._settings.for_pass(), after=self._after
            )
            done = self._database.run(work)
        self._after = done.after
        self._next_at = now + (INTERVAL if done.is_waiting else self._idle_interval)
        if done.after and (done.admitted or done.knows_limits):
            # The next owners may have free slots. A function that fails is not called as often.
            self._next_at = now if done.admitted else now + INTERVAL / 10
        return done.admitted


class _Scope(NamedTuple):
    """A locked scope: its slots in use, and the caps of its owners that have waiting runs.

    ``last_seen`` is the last of these owners if the scope has more of them, or else None.
    """

    name: str
    last_owner: str
    used: Used
    caps: Mapping[str, Caps]
    last_seen: str | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the limits of the scope itself allow no further run."""
        full = (full_limit(caps, self.used) for caps in self.caps.values())
        return any(limit is not None and limit.owner == self.name for limit in full)


def admit_waiting(session: Session, *, now: datetime, settings: Settings, after: str = "") -> Pass:
    """Admit the waiting runs of the next owners whose limits allow it."""
    owners = slots.waiting_owners(session, after=after, limit=MAX_OWNERS)
    if not owners and after:
        owners = slots.waiting_owners(session, after="", limit=MAX_OWNERS)
    if not owners:
        return Pass(0, is_waiting=False, after="")
    _end_expired(session, now=now, settings=settings)
    caps = _known_caps(settings, owners)
    unknown = [owner for owner in owners if owner not in caps]
    _delete_ended(session, unknown)
    members: defaultdict[str, list[str]] = defaultdict(list)
    for owner, of_owner in caps.items():
        # An owner whose limits were removed is a scope without a limit.
        members[of_owner.scope if of_owner else owner].append(owner)
    locked = slots.lock_scopes(session, members)
    found = _slots_in_use(session, locked, settings=settings, now=now)
    scopes: list[_Scope] = []
    for name in sorted(locked):
        scope = _Scope(name, locked[name], used_slots(found.get(name, ()), now=now), {})
        if is_group(name):
            scopes.append(_with_owners_in_turn(session, scope, settings=settings))
        else:
            scopes.append(scope._replace(caps={owner: caps[owner] for owner in members[name]}))
    count = _admit(session, scopes, now=now, settings=settings)
    is_last = len(owners) < MAX_OWNERS
    return Pass(
        count, is_waiting=True, after="" if is_last else owners[-1], knows_limits=not unknown
    )


def _known_caps(settings: Settings, owners: Iterable[str]) -> Mapping[str, Caps]:
    """Return the caps of the owners, without those whose limits could not be read."""
    found = {owner: settings.caps_of(owner) for owner in owners}
    return {owner: caps for owner, caps in found.items() if settings.knows_limits_of(owner)}


def _delete_ended(session: Session, owners: Iterable[str]) -> None:
    """Delete the slots of ended runs among the oldest waiting runs of owners without known limits.

    The function may fail for each owner that no longer exists.
    """
    read = partial(slots.oldest_waiting, session, limit=SPARE)
    rows = [row for owner in owners for row in read(owner=owner)]
    slots.delete_slots(session, [row.slot_id for row in rows if not row.waits])


def _with_owners_in_turn(session: Session, scope: _Scope, *, settings: Settings) -> _Scope:
    """Return the scope of a group with its owners that wait, from the next in turn on."""
    read = partial(slots.waiting_owners, session, limit=MAX_OWNERS, within=scope.name)
    owners = read(after=scope.last_owner)
    if len(owners) < MAX_OWNERS:
        owners = list(dict.fromkeys([*owners, *read(after="")]))[:MAX_OWNERS]
    last_seen = owners[-1] if len(owners) == MAX_OWNERS else None
    return scope._replace(caps=_known_caps(settings, owners), last_seen=last_seen)


def _slots_in_use(
    session: Session, locked: Mapping[str, str], *, settings: Settings, now: datetime
) -> Mapping[str, Sequence[tuple[str, datetime, bool]]]:
    """Return the admitted slots by scope. Delete the slots that no limit counts any more."""
    found: defaultdict[str, list[AdmittedSlot]] = defaultdict(list)
    old: list[int] = []
    for slot in slots.admitted(session, locked):
        # An owner without waiting runs also needs its recent starts, because its next run counts
        # them.
        counts = is_recent(slot.admitted_at, now=now) and settings.caps_of(slot.owner).starts
        if slot.has_ended and not counts:
            # A lost run keeps its slot for some time, because it may start again.
            if slot.lost_at is None:
                old.append(slot.id)
            continue
        for scope in (slot.owner, *groups_of(slot.owner)):
            if scope in locked:
                found[scope].append(slot)
    slots.delete_slots(session, old)
    return {
        scope: [(each.owner, each.admitted_at, each.has_ended) for each in in_use]
        for scope, in_use in found.items()
    }


def _admit(session: Session, scopes: Sequence[_Scope], *, now: datetime, settings: Settings) -> int:
    """Admit runs of the locked scopes. Return their number."""
    free: dict[str, int] = {}
    for scope in scopes:
        for owner, caps in scope.caps.items():
            free[owner] = free_slots(caps, scope.used, most=MAX_RUNS)
    ready = _lock_ready(session, free, now=now, settings=settings)
    admitted: list[str] = []
    for scope in scopes:
        of_scope = {owner: ready.get(owner, ()) for owner in scope.caps}
        given = admit(of_scope, scope.caps, scope.used, last_owner=scope.last_owner)
        admitted += given.run_ids
        last_owner = given.last_owner
        if not given.run_ids and scope.last_seen is not None and not scope.is_full:
            # These owners have reached limits that are not of the group. The others come next.
            last_owner = scope.last_seen
        if is_group(scope.name) and last_owner != scope.last_owner:
            slots.set_last_owner(session, scope=scope.name, owner=last_owner)
    slots.admit(session, admitted, now=now)
    return len(admitted)


def _lock_ready(
    session: Session, free: Mapping[str, int], *, now: datetime, settings: Settings
) -> Mapping[str, Sequence[str]]:
    """Lock the oldest waiting runs of each owner with ``free`` slots; return their ids."""
    read = partial(slots.oldest_waiting, session)
    lock = partial(_lock_waiting, session, now=now, settings=settings)
    waiting = {owner: read(owner=owner, limit=n + SPARE) for owner, n in free.items() if n}
    ready = lock(waiting)
    # The first runs must not overlap other runs, or an application has locked them, perhaps all
    # waiting runs of one schedule.
    passed_over = {
        owner: read(owner=owner, limit=MAX_PASSED_OVER)
        for owner, rows in waiting.items()
        if len(rows) == free[owner] + SPARE and len(ready[owner]) < free[owner]
    }
    return {**ready, **lock(passed_over)}


def _lock_waiting(
    session: Session,
    waiting: Mapping[str, Sequence["WaitingRun"]],
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Sequence[str]]:
    """Lock the runs that may start, and delete the slots of those that have ended.

    Runs that others have locked are left out.
    """
    rows = [row for each in waiting.values() for row in each]
    # Paused, deleted or cancelled while they waited.
    slots.delete_slots(session, [row.slot_id for row in rows if not row.waits])
    exclusive = {row.run_id for row in rows if row.waits and _is_exclusive(row, settings)}
    blocked = _blocked(
        session, [row for row in rows if row.run_id in exclusive], now=now, settings=settings
    )
    unblocked = [row for row in rows if row.waits and row.run_id not in blocked]
    unlocked = set(slots.free_waiting(session, [row.run_id for row in unblocked]))
    first: dict[int | None, str] = {}
    for row in unblocked:
        if row.run_id in exclusive and row.run_id in unlocked:
            first.setdefault(row.schedule_id, row.run_id)
    others = exclusive.difference(first.values())
    return {
        owner: [row.run_id for row in each if row.run_id in unlocked and row.run_id not in others]
        for owner, each in waiting.items()
    }


def _is_exclusive(row: "WaitingRun", settings: Settings) -> bool:
    """Return whether the run must not start while another run of its schedule has a slot.

    ``overlap`` delays no manual run.
    """
    if (row.overlap or settings.overlap) not in {"skip", "buffer_one"}:
        return False
    return row.origin == Origin.SCHEDULE or row.is_requested


def _blocked(
    session: Session, rows: Sequence["WaitingRun"], *, now: datetime, settings: Settings
) -> set[str]:
    """Return the ids of the runs whose schedule has another run that was sent or has a slot."""
    schedule_ids = {row.schedule_id for row in rows if row.schedule_id is not None}
    previous: defaultdict[int, list[Row]] = defaultdict(list)
    for other in unfinished.unfinished_runs(session, sorted(schedule_ids)):
        previous[other.schedule_id].append(other)
    return {
        row.run_id
        for row in rows
        if row.schedule_id is not None
        and any(
            is_previous(other, row, now=now, settings=settings)
            for other in previous[row.schedule_id]
        )
    }


def _end_expired(session: Session, *, now: datetime, settings: Settings) -> None:
    """Mark the waiting runs that have expired, by the present ``expires_after``."""
    expired: list[WaitingRun] = []
    gone: list[int] = []
    for row in slots.lock_expiring(session, now=now, limit=MAX_RUNS):
        if not row.waits or row.created_at is None:
            gone.append(row.slot_id)
            continue
        expiry = expires_at(row.expires_after, created_at=row.created_at, settings=settings)
        if expiry is None or expiry > now:
            slots.set_expiry(session, slot_id=row.slot_id, expires_at=expiry)
        else:
            expired.append(row)
    free = set(slots.free_waiting(session, [row.run_id for row in expired]))
    runs.mark_expired(session, sorted(free), now=now)
    slots.delete_slots(session, [*gone, *(row.slot_id for row in expired if row.run_id in free)])
