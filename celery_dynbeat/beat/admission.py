"""Admit waiting runs: give the free slots of owners and groups to their oldest waiting runs.

    waiting (pending, no overdue_at) -> a slot is free -> admitted (overdue) -> the sweep sends it

A slot is in use while it is admitted and its run has not ended. Slots are counted from the rows of
the runs, so a worker or a pool process that dies leaks no slot: the slot is free once the run is
lost. A run keeps its slot while it waits for a retry.

Two beats never admit runs of one scope at the same time: each locks the row of the scope. After a
crash before the commit the runs wait as before; after the commit the sweep of any beat sends them.
A waiting run costs no other owner anything: it is in no index that a claim or a sweep reads.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.common.owner_limits import Caps
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import groups_of
from celery_dynbeat.db.engine import Database
from celery_dynbeat.planning import expires_at
from celery_dynbeat.planning.admission import MINUTE, Used, admit, free_slots, used_slots
from celery_dynbeat.store import runs, slots

if TYPE_CHECKING:
    from celery_dynbeat.store.slots import AdmittedSlot, WaitingRun

#: How often beat looks for free slots while runs wait.
INTERVAL = timedelta(milliseconds=500)
NOW = timedelta(0)
#: Owners with waiting runs that one pass reads.
MAX_OWNERS = 500
#: Waiting runs of a scope that one pass reads, in addition to those that it may admit.
MAX_READ = 200
#: Runs of one owner that one pass admits, and expired runs that it ends.
MAX_RUNS = 200


class Pass(NamedTuple):
    """The result of one pass: admitted runs, and the last owner if there are more owners."""

    admitted: int
    is_waiting: bool
    after: str


class Admission:
    """Admits runs when it is time: after new runs, after a change, regularly while runs wait."""

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
        # An instant far after ``now``: the clock was set back.
        if at is not None and now < at <= now + self._idle_interval:
            return 0
        work = partial(
            admit_waiting, now=now, settings=self._settings.for_pass(), after=self._after
        )
        done = self._database.run(work)
        self._after = done.after
        waits = done.is_waiting or bool(done.after)
        self._next_at = None if done.after else now + (INTERVAL if waits else self._idle_interval)
        return done.admitted


def admit_waiting(session: Session, *, now: datetime, settings: Settings, after: str = "") -> Pass:
    """Admit the waiting runs of the next owners whose limits allow it."""
    owners = slots.waiting_owners(session, after=after, limit=MAX_OWNERS)
    if not owners:
        return Pass(0, is_waiting=False, after="")
    _end_expired(session, now=now, settings=settings)
    caps = {owner: settings.caps_of(owner) for owner in owners}
    scopes: defaultdict[str, list[str]] = defaultdict(list)
    for owner in owners:
        # An owner whose limits were removed is a scope without a limit.
        scopes[caps[owner].scope if caps[owner] else owner].append(owner)
    locked = slots.lock_scopes(session, scopes)
    found = _slots_in_use(session, locked, now=now)
    count = 0
    empty: list[str] = []
    for scope in sorted(locked):
        used = used_slots(found.get(scope, ()), now=now)
        admitted, waits = _admit_scope(
            session,
            scope,
            {owner: caps[owner] for owner in scopes[scope]},
            used,
            last_owner=locked[scope],
            now=now,
        )
        count += admitted
        if not waits:
            empty.append(scope)
    slots.delete_scopes(session, empty)
    is_last = len(owners) < MAX_OWNERS
    return Pass(count, is_waiting=True, after="" if is_last else owners[-1])


def _slots_in_use(
    session: Session, locked: Mapping[str, str], *, now: datetime
) -> Mapping[str, Sequence[tuple[str, datetime, bool]]]:
    """Return the admitted slots by scope. Delete those that no limit counts any more."""
    found: defaultdict[str, list[AdmittedSlot]] = defaultdict(list)
    old: list[int] = []
    for slot in slots.admitted(session, locked):
        if slot.has_ended and slot.admitted_at <= now - MINUTE:
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


def _admit_scope(
    session: Session,
    scope: str,
    caps: Mapping[str, Caps],
    used: Used,
    *,
    last_owner: str,
    now: datetime,
) -> tuple[int, bool]:
    """Admit runs of one locked scope. Return their number, and whether others may wait."""
    waiting: dict[str, Sequence[str]] = {}
    may_wait = False
    for owner, of_owner in caps.items():
        free = free_slots(of_owner, used, most=MAX_RUNS)
        if not free:
            may_wait = True
            continue
        # Some may have been revoked while they waited.
        limit = free + max(10, MAX_READ // len(caps))
        rows = slots.oldest_waiting(session, owner=owner, limit=limit)
        slots.delete_slots(session, [row.slot_id for row in rows if not row.waits])
        wanted = [row.run_id for row in rows if row.waits][:free]
        waiting[owner] = slots.free_waiting(session, wanted)
        may_wait = may_wait or len(rows) > len(waiting[owner])
    admission = admit(waiting, caps, used, last_owner=last_owner)
    slots.admit(session, admission.run_ids, now=now)
    if admission.last_owner != last_owner:
        slots.set_last_owner(session, scope=scope, owner=admission.last_owner)
    left = sum(map(len, waiting.values())) > len(admission.run_ids)
    return len(admission.run_ids), may_wait or left


def _end_expired(session: Session, *, now: datetime, settings: Settings) -> None:
    """Mark the waiting runs that have expired, by the present ``expires_after``."""
    expired: list[WaitingRun] = []
    gone: list[int] = []
    for row in slots.expiring(session, now=now, limit=MAX_RUNS):
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
