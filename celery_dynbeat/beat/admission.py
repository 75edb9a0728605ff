"""Admit waiting runs: give the free places of a key to its oldest waiting runs.

    waiting (pending, no overdue_at) -> a place is free -> admitted (overdue) -> the sweep sends it

Places are counted from the rows of the runs (``store.places``), so a worker or a pool process that
dies leaks no place: the place is free once the run is lost. The oldest run of a key is first, and a
run that waits for its retry is as old as before. So no run waits for ever, and no owner or schedule
of a key starves another. If the owners of a key have different limits, the limit of the
first run's owner applies until that run has its place.

Passed over are runs that others have locked, runs that a hold or quiet hours stop, runs of owners
whose limits cannot be read, and, with overlap="skip" or "buffer_one", runs of a schedule that has
another run with a place. A run of a batch also waits for a run of its schedule that gets a place in
the same pass, unless their runs may overlap.

Only one beat admits at a time: it locks a row. After a crash before the commit, the runs wait as
before. After a crash that follows the commit, the sweep of any beat sends them.

A key is stored in a run when the run is recorded. If a limit is new or an owner has another key,
the unfinished runs of the owner get the key before the next place is given.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat.duties import NOW, Done
from celery_dynbeat.beat.waiting import is_previous, is_requested, stopped
from celery_dynbeat.common.owner_limits import Cap
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import BATCH_ORIGINS
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Origin
from celery_dynbeat.store import places, runs
from celery_dynbeat.store.places import WaitingRun
from celery_dynbeat.store.runs import unfinished

if TYPE_CHECKING:
    from celery_dynbeat.db.statements import Row

#: Beat looks for free places at this interval while runs wait.
INTERVAL = timedelta(milliseconds=500)
#: The waiting runs that one statement reads, and the keys whose runs one pass considers.
PAGE, MAX_KEYS = 100, 100
#: The maximum number of runs of one key that one pass admits.
MAX_RUNS = 200
#: The number of further waiting runs of a key that are read, because some may be locked or wait for
#: a run of their schedule. If these are more, up to MAX_PASSED_OVER runs are read.
SPARE, MAX_PASSED_OVER = 10, 1_000
#: Beat looks for waiting runs that have expired at this interval, and for unfinished runs whose key
#: is not the present key of their owner.
EXPIRY_INTERVAL, KEY_INTERVAL = timedelta(seconds=5), timedelta(minutes=1)


class Pass(NamedTuple):
    """The result of one pass: the number of admitted runs, and the last key if there are more keys.

    ``knows_limits`` is false if the limits of an owner could not be read. ``stored_keys`` contains
    the owners whose unfinished runs got their present key.
    """

    admitted: int
    is_waiting: bool
    after: str = ""
    knows_limits: bool = True
    stored_keys: Mapping[str, str] = MappingProxyType({})


class Admission:
    """The duty that admits runs: after new runs, after a change, and regularly while runs wait.

    Runs may wait even if this beat's settings contain no limit, because the last limit was removed
    or another process has one. The settings of beat then allow a longer interval.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        #: Whether runs waited in the last pass.
        self.is_waiting = False
        self._after = ""
        self._expired_at: datetime | None = None
        self._keys_at: datetime | None = None
        #: The key of each owner whose unfinished runs have that key.
        self._keys: dict[str, str] = {}

    def run(self, now: datetime) -> Done:
        """Admit runs."""
        done = Pass(0, is_waiting=False)
        # Read before any lock, because nothing is locked if no run waits.
        if self._after or self._database.read(runs.has_waiting):
            if _is_due(self._keys_at, now, interval=KEY_INTERVAL):
                self._keys_at = now + KEY_INTERVAL
                self._keys.clear()
            ends_expired = _is_due(self._expired_at, now, interval=EXPIRY_INTERVAL)
            if ends_expired:
                self._expired_at = now + EXPIRY_INTERVAL
            work = partial(
                admit_waiting,
                now=now,
                settings=self._settings.for_pass(),
                after=self._after,
                stored_keys=self._keys,
                ends_expired=ends_expired,
            )
            done = self._database.run(work)
        # After the commit, because a transaction may be repeated.
        self._keys.update(done.stored_keys)
        self._after, self.is_waiting = done.after, done.is_waiting
        again_after = INTERVAL if done.is_waiting else None
        if done.after and (done.admitted or done.knows_limits):
            # The next keys may have free places. A function that fails is not called as often.
            again_after = NOW if done.admitted else INTERVAL / 10
        return Done(done.admitted, again_after)


def admit_waiting(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    after: str = "",
    stored_keys: Mapping[str, str] = MappingProxyType({}),
    ends_expired: bool = True,
) -> Pass:
    """Admit the waiting runs of the next keys. ``settings`` are those of one pass.

    ``stored_keys`` contains the owners whose unfinished runs have their present key.
    """
    read = _read_queues(session, after=after)
    # Before the lock, because these may be calls of a function of the application.
    limits = settings.owner_limits
    caps = {owner: limits.cap_of(owner) for owner in {row.owner for row in read.rows}}
    known = {owner: cap for owner, cap in caps.items() if limits.knows(owner)}
    if not places.lock(session):
        return Pass(0, is_waiting=True, after=after)
    if ends_expired:
        _end_expired(session, now=now, settings=settings)
    keys = _changed_keys(read.rows, known, stored_keys)
    uncounted = places.set_keys(session, keys) if keys else Counter[str]()
    queues = _Queues(session, now=now, settings=settings, caps=known, uncounted=uncounted)
    return Pass(
        queues.admit(read),
        is_waiting=bool(read.rows),
        after=read.after,
        knows_limits=len(known) == len(caps),
        stored_keys={owner: key for owner, key in keys.items() if not uncounted[key]},
    )


def _changed_keys(
    rows: Iterable[WaitingRun], caps: Mapping[str, Cap | None], stored: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the keys of the owners whose unfinished runs may have another key, or none."""
    keys = {owner: cap.key for owner, cap in caps.items() if cap is not None}
    stale = {row.owner for row in rows if keys.get(row.owner, row.running_key) != row.running_key}
    return {owner: key for owner, key in keys.items() if owner in stale or stored.get(owner) != key}


def _is_due(at: datetime | None, now: datetime, *, interval: timedelta) -> bool:
    # An instant far after ``now`` means that the clock was set back.
    return at is None or not now < at <= now + interval


class _Queued(NamedTuple):
    """The first waiting runs of some keys, and the last key if there are more keys.

    The keys ``cut`` have further waiting runs, or may have some.
    """

    rows: Sequence[WaitingRun]
    after: str
    cut: Collection[str]


def _read_queues(session: Session, *, after: str) -> _Queued:
    """Return the first waiting runs of the next keys, by key."""
    start, rows, cut = after, list[WaitingRun](), list[str]()
    keys: set[str] = set()
    while len(keys) < MAX_KEYS:
        page = places.page(session, after=after, limit=PAGE)
        rows += page
        keys |= {row.running_key for row in page}
        if len(page) < PAGE:
            # Without further keys, the next pass begins again, and this one does if it read none.
            return _Queued(rows, "", cut) if rows or not start else _read_queues(session, after="")
        # Each page begins with the next key, because a key may have many waiting runs.
        after = page[-1].running_key
        cut.append(after)
    return _Queued(rows, after, cut)


class _Queues:
    """Gives the free places of the keys, in one transaction.

    ``caps`` contains the owners whose limits are known; an owner without a limit has None.
    ``uncounted`` is the number of unfinished runs of a key that do not have it in their row.
    """

    def __init__(
        self,
        session: Session,
        *,
        now: datetime,
        settings: Settings,
        caps: Mapping[str, Cap | None],
        uncounted: Counter[str],
    ) -> None:
        self._session, self._now, self._settings = session, now, settings
        self._caps, self._uncounted = caps, uncounted

    def admit(self, read: _Queued) -> int:
        """Admit the first runs of each key; return their number."""
        by_key = {key: list(of_key) for key, of_key in groupby(read.rows, key=_key_of)}
        used = places.in_use(self._session, by_key) if by_key else Counter[str]()
        used += self._uncounted
        free = {key: self._free(of_key, used[key]) for key, of_key in by_key.items()}
        wanted = {key: self._first(by_key[key], most) for key, most in free.items() if most}
        ready = self._lock_ready(wanted)
        for key, most in free.items():
            may_be_more = key in read.cut or len(by_key[key]) > most + SPARE
            if most > len(ready.get(key, ())) and may_be_more:
                # The first runs are passed over, perhaps all waiting runs of one schedule, or there
                # are more free places than were read.
                more = places.oldest(self._session, key=key, limit=MAX_PASSED_OVER)
                ready |= self._lock_ready({key: self._keyed(more)})
        unlimited: list[WaitingRun] = []
        limited: list[WaitingRun] = []
        for key, of_key in ready.items():
            given = used[key]
            for row in of_key:
                cap = self._caps.get(row.owner)
                if cap is None:
                    unlimited.append(row)
                elif given < min(cap.max_running, used[key] + MAX_RUNS):
                    limited.append(row)
                    given += 1
                else:
                    break
        late = self._late([*limited, *unlimited])
        for rows, counts in ((limited, True), (unlimited, False)):
            ids = [row.id for row in rows if row.id not in late]
            places.give(self._session, ids, now=self._now, counts=counts)
        return len(limited) + len(unlimited) - len(late)

    def _late(self, rows: Sequence[WaitingRun]) -> set[str]:
        """Return the ids of the runs of batches whose schedule has an earlier one among ``rows``.

        A run that does not belong to a batch is earlier, because it does not wait for a batch.
        """
        of_batches = [
            row for row in rows if row.origin in BATCH_ORIGINS and self._is_exclusive(row)
        ]
        ids = {row.id for row in of_batches}
        taken = {row.schedule_id for row in rows if row.id not in ids}
        late = set()
        for row in of_batches:
            if row.schedule_id in taken:
                late.add(row.id)
            taken.add(row.schedule_id)
        return late

    def _keyed(self, rows: Sequence[WaitingRun]) -> list[WaitingRun]:
        """Return the runs whose owner has a known limit with their key, or no limit."""
        return [
            row
            for row in rows
            if row.owner in self._caps
            and ((cap := self._caps[row.owner]) is None or cap.key == row.running_key)
        ]

    def _free(self, rows: Sequence[WaitingRun], used: int) -> int:
        """Return how many runs of a key may be admitted, by the limit of its first run's owner."""
        for row in self._keyed(rows):
            cap = self._caps[row.owner]
            return MAX_RUNS if cap is None else min(MAX_RUNS, max(0, cap.max_running - used))
        return 0

    def _first(self, rows: Sequence[WaitingRun], most: int) -> list[WaitingRun]:
        return self._keyed(rows)[: most + SPARE]

    def _lock_ready(
        self, waiting: Mapping[str, Sequence[WaitingRun]]
    ) -> dict[str, list[WaitingRun]]:
        """Lock the runs that may start, and return those that no other transaction has locked."""
        every = [row for each in waiting.values() for row in each]
        orphans = [row.id for row in every if row.schedule_id is None]
        reason = "the schedule was deleted"
        runs.revoke_free(self._session, orphans, now=self._now, reason=reason)
        stopped_ids = {row.id for row in every if row.is_quarantined and not is_requested(row)}
        reason = "the schedule is quarantined"
        runs.revoke_free(self._session, sorted(stopped_ids), now=self._now, reason=reason)
        rows = [row for row in every if row.id not in stopped_ids]
        exclusive = {row.id for row in rows if self._is_exclusive(row)}
        blocked = self._blocked([row for row in rows if row.id in exclusive])
        asking = [row for row in rows if row.schedule_id is not None and row.id not in blocked]
        is_stopped = stopped(self._session, asking, now=self._now)
        unblocked = [row for row in asking if row.id not in is_stopped]
        free = places.lock_waiting(self._session, [row.id for row in unblocked])
        first: dict[int | None, str] = {}
        for row in unblocked:
            if row.id in exclusive and row.id in free:
                first.setdefault(row.schedule_id, row.id)
        ready = free - exclusive.difference(first.values())
        return {key: [row for row in each if row.id in ready] for key, each in waiting.items()}

    def _is_exclusive(self, row: WaitingRun) -> bool:
        """Return whether the run must not start while another run of its schedule has a place.

        ``overlap`` delays no manual run, and no further attempt of a run.
        """
        overlap = row.overlap or self._settings.overlap
        if row.origin in BATCH_ORIGINS:
            return overlap != "allow" and row.sent_at is None
        is_limiting = overlap in {"skip", "buffer_one"}
        return is_limiting and row.origin == Origin.SCHEDULE and row.sent_at is None

    def _blocked(self, rows: Sequence[WaitingRun]) -> set[str]:
        """Return the ids of the runs whose schedule has another run that must end first."""
        schedule_ids = {row.schedule_id for row in rows if row.schedule_id is not None}
        previous: defaultdict[int, list[Row]] = defaultdict(list)
        for other in unfinished.unfinished_runs(self._session, sorted(schedule_ids)):
            previous[other.schedule_id].append(other)
        return {
            row.id
            for row in rows
            if row.schedule_id is not None
            and any(
                is_previous(other, row, now=self._now, settings=self._settings)
                for other in previous[row.schedule_id]
            )
        }


def _key_of(row: WaitingRun) -> str:
    return row.running_key


def _end_expired(session: Session, *, now: datetime, settings: Settings) -> None:
    """Mark the waiting runs that have expired, by the present ``expires_after``."""
    default = settings.expires_after
    seconds = None if default is None else default.total_seconds()
    expired: Collection[str] = places.expired(session, now=now, default=seconds, limit=MAX_RUNS)
    free = places.lock_waiting(session, list(expired))
    runs.mark_expired(session, sorted(free), now=now)
