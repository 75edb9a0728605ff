"""Which fire times become runs: the rules of a schedule, as pure functions of an instant.

Nothing here reads a clock, a table or a setting. Source of the rules: "Time" and "Policies" of
docs/explanation/design.md.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from celery_dynbeat.planning.schedule_spec import ScheduleSpec

TOO_NEAR = "limit: nearer to the fire time before it than dynbeat_min_interval allows"
#: The smallest step between two instants that the databases can tell apart.
TICK = timedelta(microseconds=1)
#: Missed fire times are counted up to here, by triggers that have to walk through them; beyond it
#: the count says "at least".
COUNT_LIMIT = 1_000
#: The same for triggers that count fast. The column, of 32 bits, has room for them.
MOST_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True)
class Skip:
    """Fire times that are not sent: how many, and why.

    At most MOST_COUNTED are counted, COUNT_LIMIT if the trigger does not count fast.
    """

    newest: datetime
    count: int
    reason: str


class Plan(NamedTuple):
    """What one pass does with one schedule.

    ``send`` are the fire times that become runs now, ``hold`` those that become runs which wait for
    the one before to end. ``replaces``: the runs before are cancelled. ``next_fire_at`` None: the
    schedule has finished.
    """

    send: tuple[datetime, ...] = ()
    hold: tuple[datetime, ...] = ()
    skips: tuple[Skip, ...] = ()
    replaces: bool = False
    next_fire_at: datetime | None = None

    @property
    def runs(self) -> tuple[datetime, ...]:
        """The fire times that become runs, oldest first."""
        return self.send + self.hold


def first_fire(
    rule: ScheduleSpec, *, now: datetime, last_run_at: datetime | None = None
) -> datetime | None:
    """Return the first fire time after ``now``, or None when there is none.

    A ``start_at`` in the future may itself be a fire time. It is not nearer to ``last_run_at``, the
    fire time of the newest run, than the rule allows.
    """
    after = now if rule.start_at is None else max(now, rule.start_at - TICK)
    if last_run_at is not None:
        after = max(after, min(last_run_at, now) + rule.min_interval - TICK)
    return _next(rule, after)


def run_at(rule: ScheduleSpec, fire_at: datetime) -> datetime:
    """Return when beat takes up ``fire_at``: delayed by the jitter, before the next fire time.

    The delay is picked by hash, so it is the same whoever asks, and however often.
    """
    if not rule.jitter:
        return fire_at
    next_at = rule.trigger.next_after(fire_at)
    room = rule.jitter if next_at is None else min(rule.jitter, next_at - fire_at)
    digest = hashlib.blake2b(f"{rule.key}@{fire_at.isoformat()}".encode(), digest_size=8).digest()
    return fire_at + (room // TICK * int.from_bytes(digest) >> 64) * TICK


def following(rule: ScheduleSpec, fire_at: datetime) -> datetime | None:
    """Return the fire time after ``fire_at`` that is not nearer to it than the rule allows."""
    return rule.trigger.next_after(fire_at + max(rule.min_interval - TICK, timedelta(0)))


def passed(rule: ScheduleSpec, *, fire_at: datetime, now: datetime, reason: str) -> Skip | None:
    """Return the Skip for what nobody sends any more: the fire times from ``fire_at`` to ``now``.

    For a schedule that was paused, broken or edited meanwhile; None when nothing has passed.
    """
    return _skip(rule, fire_at, now if rule.end_at is None else min(now, rule.end_at), reason)


def plan(
    rule: ScheduleSpec,
    *,
    fire_at: datetime,
    run_count: int,
    now: datetime,
    limit: int,
    busy: int = 0,
    waiting: int = 0,
    last_run_at: datetime | None = None,
) -> Plan:
    """Decide about the fire times from ``fire_at`` up to ``now``.

    ``fire_at`` is the schedule's next fire time, and due. At most ``limit`` fire times become runs;
    with ``catch_up="all"`` the rest stays due for the next pass. ``run_count`` counts the runs made
    so far, ``busy`` those of them that count against overlap, ``waiting`` those of these that wait
    for another to end. ``last_run_at`` is the fire time of the newest.
    """
    until = _due_until(rule, fire_at, now)
    if rule.max_runs is not None:
        limit = min(limit, rule.max_runs - run_count)
    if fire_at > until or limit <= 0:
        return Plan()
    # Of runs that replace each other only the newest is worth sending.
    every = rule.catch_up == "all" and rule.overlap != "cancel_previous"
    decide = _all if every else _newest_only
    wanted, missed, reached = decide(rule, fire_at, until, now, limit)
    send, hold, refused, reason = _admit(rule.overlap, wanted, busy, waiting)
    exhausted = rule.max_runs is not None and run_count + len(send) + len(hold) >= rule.max_runs
    overlapped = Skip(refused[-1], len(refused), reason) if refused else None
    if wanted:
        reached = max(reached, wanted[-1] + rule.min_interval - TICK)
    skips = (missed, overlapped, _too_near(rule, fire_at, wanted, last_run_at))
    return Plan(
        send=send,
        hold=hold,
        skips=tuple(skip for skip in skips if skip is not None),
        replaces=rule.overlap == "cancel_previous" and busy > 0 and bool(send),
        next_fire_at=None if exhausted else _next(rule, reached),
    )


def _due_until(rule: ScheduleSpec, fire_at: datetime, now: datetime) -> datetime:
    """Return up to when fire times are due: those delayed beyond ``now`` by jitter are not."""
    until = now if rule.end_at is None else min(now, rule.end_at)
    if not rule.jitter:
        return until
    newest = rule.trigger.latest_until(after=fire_at, until=until)
    return until if newest is None or run_at(rule, newest) <= now else newest - TICK


_Instants = tuple[datetime, ...]


def _admit(
    overlap: str, wanted: _Instants, busy: int, waiting: int
) -> tuple[_Instants, _Instants, _Instants, str]:
    """Return what is sent, what waits, what is refused, and why, with ``busy`` runs unfinished."""
    if overlap == "skip":
        free = 0 if busy else 1
        return wanted[:free], (), wanted[free:], "overlap: the run before had not ended"
    if overlap == "buffer_one":
        free = 0 if busy else 1
        room = free + (0 if waiting else 1)
        reason = "overlap: the run before had not ended, and one waited already"
        return wanted[:free], wanted[free:room], wanted[room:], reason
    return wanted, (), (), ""


_Decision = tuple[_Instants, Skip | None, datetime]


def _newest_only(
    rule: ScheduleSpec, fire_at: datetime, until: datetime, now: datetime, limit: int
) -> _Decision:
    del limit
    following_at = rule.trigger.next_after(fire_at)
    newest = fire_at
    # Mostly nothing was missed, and so much is told for less.
    if following_at is not None and following_at <= until:
        newest = rule.trigger.latest_until(after=fire_at, until=until) or fire_at
    oldest = _oldest_allowed(rule, now)
    if oldest is not None and newest < oldest:
        return (), _skip(rule, fire_at, newest, _too_old(rule)), until
    skip = _skip(rule, fire_at, newest - TICK, "missed: a newer fire time was sent instead")
    return (newest,), skip, until


def _all(
    rule: ScheduleSpec, fire_at: datetime, until: datetime, now: datetime, limit: int
) -> _Decision:
    oldest = _oldest_allowed(rule, now)
    first: datetime | None = fire_at
    skip = None
    if oldest is not None and fire_at < oldest:
        skip = _skip(rule, fire_at, min(oldest - TICK, until), _too_old(rule))
        first = rule.trigger.next_after(oldest - TICK)
    send = tuple(_fire_times(rule, first, until, limit))
    full = len(send) == limit or (send and not rule.trigger.affords_more)
    return send, skip, send[-1] if full else until


def _fire_times(
    rule: ScheduleSpec,
    first: datetime | None,
    until: datetime,
    limit: int,
) -> Iterator[datetime]:
    fire_at = first
    for _ in range(limit):
        if fire_at is None or fire_at > until:
            return
        yield fire_at
        if not rule.trigger.affords_more:
            # What is left stays due for the next pass, as beyond ``limit``.
            return
        fire_at = following(rule, fire_at)


def _too_near(
    rule: ScheduleSpec, fire_at: datetime, wanted: _Instants, last_run_at: datetime | None
) -> Skip | None:
    """Return the Skip for what lay between these fire times, too near to the one before.

    What follows the newest is told when its successor comes: it has not passed.
    """
    earlier = list(wanted[:-1])
    if last_run_at is not None and following(rule, last_run_at) == fire_at:
        earlier.insert(0, last_run_at)
    near = []
    for instant in earlier:
        first = _next(rule, instant)
        if first is not None and first < instant + rule.min_interval:
            near.append(_skip(rule, first, instant + rule.min_interval - TICK, TOO_NEAR))
    skips = [skip for skip in near if skip is not None]
    return Skip(skips[-1].newest, sum(skip.count for skip in skips), TOO_NEAR) if skips else None


def _oldest_allowed(rule: ScheduleSpec, now: datetime) -> datetime | None:
    limits = [rule.catch_up_window] if rule.catch_up_window is not None else []
    if rule.catch_up == "none":
        limits.append(rule.grace)
    # What was delayed on purpose is not late.
    return now - min(limits) - rule.jitter if limits else None


def _too_old(rule: ScheduleSpec) -> str:
    if rule.catch_up == "none":
        return "missed: no beat could send it in time, and catch_up is 'none'"
    return "missed: older than catch_up_window when a beat could send it"


def _skip(rule: ScheduleSpec, fire_at: datetime, until: datetime, reason: str) -> Skip | None:
    """Return the Skip for the fire times in [fire_at, until], or None when there are none."""
    if fire_at > until:
        return None
    newest = rule.trigger.latest_until(after=fire_at, until=until) or fire_at
    limit = MOST_COUNTED if rule.trigger.counts_fast else COUNT_LIMIT
    others = rule.trigger.count_until(after=fire_at, until=until, limit=limit - 1)
    return Skip(newest, 1 + others, reason)


def _next(rule: ScheduleSpec, after: datetime) -> datetime | None:
    fire_at = rule.trigger.next_after(after)
    if fire_at is None or (rule.end_at is not None and fire_at > rule.end_at):
        return None
    return fire_at
