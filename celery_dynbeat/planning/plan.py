"""Decide which fire times of a schedule become runs. These are pure functions of an instant.

No function here reads a clock, a table or a setting. The rules come from "Time" and "Policies" of
docs/explanation/design.md.

    due fire times -> quiet hours -> catch_up -> wanted -> overlap -> send, buffered
                   -> skipped                -> missed            -> overlapped

Nothing is sent in quiet hours. A fire time in quiet hours is due at their end (``run_at``). At that
time, ``catch_up`` decides about them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import LATEST
from celery_dynbeat.planning import ScheduleSpec, with_skipped
from celery_dynbeat.triggers.base import hash_of
from celery_dynbeat.triggers.calendar_effects import effects_on, taken_at
from celery_dynbeat.triggers.wrappers import SkippingTrigger, nominal, unwrapped

TOO_NEAR = "limit: nearer to the fire time before it than dynbeat_min_interval allows"
SUPERSEDED = "missed: a newer fire time was sent instead"
#: The resolution of the instants in every supported database.
MICROSECOND = timedelta(microseconds=1)
#: The maximum number of missed fire times that are counted for a trigger that must iterate over
#: them. A higher number is reported as "at least" this number.
COUNT_LIMIT = 1_000
#: The same limit for triggers that count without iterating. The column has 32 bits.
FAST_COUNT_LIMIT = 1_000_000

#: Why a policy skips a fire time. The other policies never skip one.
_OVERLAP_REASONS = {
    "skip": "overlap: the previous run had not ended",
    "buffer_one": "overlap: the previous run had not ended, and one run was waiting already",
}

_Instants = tuple[datetime, ...]


class OutgoingRun(NamedTuple):
    """A run that beat sends, with the columns of its schedule that the message needs.

    ``version`` is the schedule's version when its row was read. ``expires_at=None`` means that the
    run may start at any time. ``attempt`` and ``retries`` count the attempts and retries that the
    run has had. ``unstarted_since`` is when the run was first sent, if no worker has started it.
    ``origin`` is a value of ``db.models.Origin``. ``pings`` is true if workers ping the URL of the
    schedule. ``retry=None`` means that a failed run does not start again. ``next_fire_at`` is known
    if that policy needs it. ``retry_taken_at`` is when beat took this retry to send its first
    message. It is None for other messages. ``ready_at`` is when a run that waited could be sent.
    """

    run_id: str
    schedule_id: int
    owner: str
    name: str
    version: int
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    fire_at: datetime
    expires_at: datetime | None = None
    overlap: str = "allow"
    attempt: int = 0
    retries: int = 0
    unstarted_since: datetime | None = None
    origin: str = "schedule"
    pings: bool = False
    retry: Retry | None = None
    next_fire_at: datetime | None = None
    retry_taken_at: datetime | None = None
    ready_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Fire times that are not sent: the newest of them, their number and the reason.

    ``count`` is at most FAST_COUNT_LIMIT, or COUNT_LIMIT if the trigger does not count fast.
    """

    newest: datetime
    count: int
    reason: str


class Plan(NamedTuple):
    """What one pass does with one schedule.

    The fire times in ``send`` become runs that are sent now. Those in ``buffered`` become runs that
    wait until the previous run has ended. ``replaces`` means that the previous runs are cancelled.
    ``passed`` are the instants that ``skip()`` took out and that beat need not keep any more.
    ``next_fire_at=None`` means that the schedule has finished.
    """

    send: _Instants = ()
    buffered: _Instants = ()
    skips: tuple[Skip, ...] = ()
    replaces: bool = False
    passed: _Instants = ()
    next_fire_at: datetime | None = None

    @property
    def runs(self) -> _Instants:
        """The fire times that become runs, oldest first."""
        return self.send + self.buffered


class _CatchUp(NamedTuple):
    """The fire times that ``catch_up`` wants to send, and those that were missed.

    All fire times up to ``decided_until`` are decided. Later ones stay due for the next pass.
    ``upcoming`` is the first fire time after it, or None if it was not searched for.
    """

    wanted: _Instants
    missed: Skip | None
    decided_until: datetime
    upcoming: datetime | None = None


class _Overlap(NamedTuple):
    """The wanted fire times, split by ``overlap``."""

    send: _Instants
    buffered: _Instants = ()
    overlapped: Skip | None = None


def first_fire(
    spec: ScheduleSpec, *, now: datetime, last_run_at: datetime | None = None
) -> datetime | None:
    """Return the first fire time after ``now``, or None if there is none.

    A ``start_at`` in the future can itself be a fire time. The result follows ``last_run_at``, the
    fire time of the newest run, by at least ``min_interval``.
    """
    after = now if spec.start_at is None else max(now, spec.start_at - MICROSECOND)
    if last_run_at is not None:
        after = max(after, min(last_run_at, now) + spec.min_interval - MICROSECOND)
    return next_fire(spec, after)


def first_planned(
    spec: ScheduleSpec, *, now: datetime, last_run_at: datetime | None = None
) -> datetime | None:
    """Return ``first_fire``, or a fire time that ``skip()`` took out if no other is left.

    Beat records that fire time as skipped when it passes. The schedule finishes after it.
    """
    first = first_fire(spec, now=now, last_run_at=last_run_at)
    return first or first_fire(with_skipped(spec), now=now, last_run_at=last_run_at)


def next_planned(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """Return ``next_fire``, or a fire time that ``skip()`` took out if no other is left."""
    return next_fire(spec, after) or next_fire(with_skipped(spec), after)


class Progress(Protocol):
    """The columns of a schedule that say what it has done."""

    @property
    def next_fire_at(self) -> datetime | None:
        """The next fire time before it is planned again."""

    @property
    def run_count(self) -> int:
        """The number of its runs."""

    @property
    def last_run_at(self) -> datetime | None:
        """The fire time of its newest run."""


class NextRun(NamedTuple):
    """The next fire time of a schedule, and when it is due.

    Without ``run_at``, the schedule has no fire time left. If ``is_blocked``, its calendars are the
    reason: ``fire_at`` is the first fire time that they have taken.
    """

    fire_at: datetime | None = None
    run_at: datetime | None = None
    is_blocked: bool = False


def replanned(spec: ScheduleSpec, row: Progress, *, since: datetime, now: datetime) -> NextRun:
    """Plan a schedule again: return its first fire time after ``since``.

    A fire time that has passed is due at ``now``, and ``catch_up`` decides about it. Each caller
    chooses ``since`` alone: the end of a pause, the edit of a calendar, or ``now``.
    """
    if has_reached_max_runs(spec, row):
        return NextRun()
    fire_at = first_planned(spec, now=since, last_run_at=row.last_run_at)
    return moved_to(spec, row, fire_at, now=now)


def moved_to(
    spec: ScheduleSpec, row: Progress, fire_at: datetime | None, *, now: datetime
) -> NextRun:
    """Return when ``fire_at`` is due. None means that the schedule has no fire time left."""
    if fire_at is not None:
        # Not before now, because beat reads the index from its watermark on.
        return NextRun(fire_at, max(due_at(spec, fire_at, now=now), now))
    blocked_at = blocked_fire(
        spec,
        since=row.next_fire_at or now,
        now=now,
        run_count=row.run_count,
        last_run_at=row.last_run_at,
    )
    return NextRun(blocked_at, is_blocked=blocked_at is not None)


def has_reached_max_runs(spec: ScheduleSpec, row: Progress) -> bool:
    """Return whether the schedule has made as many runs as ``max_runs`` allows."""
    return spec.max_runs is not None and row.run_count >= spec.max_runs


def run_at(spec: ScheduleSpec, fire_at: datetime) -> datetime:
    """Return when ``fire_at`` is due: after quiet hours, and after the offset in its window.

    It is before the next fire time, except in quiet hours. All fire times of one quiet time are due
    together. A later fire time is never due earlier.
    """
    at = delayed_at(spec, fire_at)
    return at if spec.quiet is None else spec.quiet.end(at)


def delayed_at(spec: ScheduleSpec, fire_at: datetime) -> datetime:
    """Return ``fire_at`` plus the offset in its window, which begins at the end of quiet hours."""
    start = fire_at if spec.quiet is None else spec.quiet.end(fire_at)
    if not spec.window:
        return start
    # Also if skip() removed the next fire time, because it may return.
    next_at = nominal(spec.trigger).next_after(start)
    longest = _width(spec.window, None if next_at is None else next_at - start)
    # The key alone selects the place in the window, so that the offset is the same at each fire
    # time and in each process. It is less than the width.
    offset = longest // MICROSECOND * hash_of(f"window {spec.key}") >> 64
    return start + min(offset * MICROSECOND, LATEST - start)


def _width(window: timedelta | str, distance: timedelta | None) -> timedelta:
    """Return the width of a window after a fire time.

    ``distance`` is the time up to the next fire time, or None after the last one. A share of it is
    then nothing.
    """
    if isinstance(window, timedelta):
        return window if distance is None else min(window, distance)
    return timedelta(0) if distance is None else distance * (float(window[:-1]) / 100)


def due_at(spec: ScheduleSpec, fire_at: datetime, *, now: datetime) -> datetime:
    """Return when beat claims the schedule for ``fire_at``, its next fire time.

    It differs from ``run_at`` for a fire time that passed before the quiet hours of ``now``.
    """
    at = run_at(spec, fire_at)
    if spec.quiet is None or spec.quiet.end(now) == now:
        return at
    return max(at, spec.quiet.end(now))


def due_again(
    spec: ScheduleSpec, fire_at: datetime, *, planned_at: datetime, now: datetime
) -> datetime:
    """Return ``due_at`` after an edit of the window or the days, from ``now`` on.

    Before the edit, the schedule was due for ``fire_at`` at ``planned_at``.
    """
    at = due_at(spec, fire_at, now=now)
    if unskipped(spec, fire_at) != fire_at:
        # A new day has removed it, so its window ends after this day. The claim that finds this
        # must not be later than planned: the fire times of this day would wait, and be sent later.
        at = min(at, planned_at)
    # Not before now, because beat reads the index from its watermark on.
    return max(at, now)


def earliest_due(spec: ScheduleSpec, instant: datetime, *, since: datetime) -> datetime:
    """Return the earliest instant whose fire time can be due at ``instant``.

    Fire times before ``since`` do not matter.
    """
    start = _start(spec, instant)
    # At most three times: an offset can end in the quiet time after its own.
    while spec.window and start > since:
        until = start - MICROSECOND
        newest = spec.trigger.latest_until(after=since, until=until) or since
        if run_at(spec, newest) < instant:
            break
        start = newest if spec.quiet is None else spec.quiet.start(newest)
    return start


def _start(spec: ScheduleSpec, instant: datetime) -> datetime:
    """Return the start of the quiet time that lasts up to ``instant``, or ``instant``."""
    if spec.quiet is None:
        return instant
    before = instant - MICROSECOND
    start = spec.quiet.start(before)
    return instant if start == before else start


def following(spec: ScheduleSpec, fire_at: datetime) -> datetime | None:
    """Return the next fire time that follows ``fire_at`` by at least ``min_interval``."""
    return spec.trigger.next_after(fire_at + max(spec.min_interval - MICROSECOND, timedelta(0)))


def next_fire(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """Return the first fire time after ``after``, up to ``end_at``, or None if there is none."""
    fire_at = spec.trigger.next_after(after)
    if fire_at is None or (spec.end_at is not None and fire_at > spec.end_at):
        return None
    return fire_at


def unskipped(spec: ScheduleSpec, fire_at: datetime) -> datetime | None:
    """Return ``fire_at``, or the next fire time if ``fire_at`` was removed.

    The result is None if none is left. ``skip()`` removes a fire time, as does a day that was added
    to a calendar after the fire time was planned.
    """
    is_removed = _is_skipped(spec, fire_at)
    if not is_removed and spec.calendars:
        is_yielded = nominal(spec.trigger).next_after(fire_at - MICROSECOND) == fire_at
        is_removed = not is_yielded and _is_taken(spec, fire_at)
    return next_fire(spec, fire_at) if is_removed else fire_at


def _is_taken(spec: ScheduleSpec, fire_at: datetime) -> bool:
    """Return whether a calendar is the reason that the trigger does not yield ``fire_at``.

    Another release of the tz database can be the reason as well.
    """
    return taken_at(unwrapped(spec.trigger), fire_at)


def blocked_fire(
    spec: ScheduleSpec,
    *,
    since: datetime,
    now: datetime,
    run_count: int,
    last_run_at: datetime | None,
) -> datetime | None:
    """Return the first fire time from ``since`` on that the calendars alone have taken, or None.

    The schedule has no fire time after ``now``. Fire times before its newest one have been decided,
    and so have those that moved to it or to an earlier instant.
    """
    if not spec.calendars or (spec.max_runs is not None and run_count >= spec.max_runs):
        return None
    after = min(since - MICROSECOND, now)
    after = after if spec.start_at is None else max(after, spec.start_at - MICROSECOND)
    trigger = nominal(spec.trigger)
    decided = trigger.latest_until(after=after, until=now) if after < now else None
    if last_run_at is not None:
        last = min(last_run_at, now)
        decided = max(decided or last, last + spec.min_interval - MICROSECOND, last)
    after, until = max(after, decided or after), spec.end_at or LATEST
    for effect in effects_on(unwrapped(trigger), after=after, until=until, limit=COUNT_LIMIT):
        if _is_skipped(spec, effect.at):
            continue
        moved_to = effect.moved_to
        if moved_to is None:
            return effect.at
        is_decided = (decided is not None and moved_to <= decided) or _is_skipped(spec, moved_to)
        if not is_decided and moved_to <= until:
            return effect.at
    return None


def _is_skipped(spec: ScheduleSpec, fire_at: datetime) -> bool:
    """Return whether ``skip()`` removed ``fire_at``."""
    return isinstance(spec.trigger, SkippingTrigger) and fire_at in spec.trigger.skipped


def skip_missed(
    spec: ScheduleSpec, *, fire_at: datetime, now: datetime, reason: str
) -> tuple[Skip, ...]:
    """Return the fire times from ``fire_at`` to ``now``, also those that ``skip()`` took out.

    It is for a schedule that was paused, quarantined or edited while they passed.
    """
    first = unskipped(spec, fire_at)
    until = now if spec.end_at is None else min(now, spec.end_at)
    missed = None if first is None else _skip(spec, first, until, reason)
    return (*filter(None, (missed,)), *_taken_out(spec, _passed(spec, before=None, now=now)))


def plan(
    spec: ScheduleSpec,
    *,
    fire_at: datetime,
    run_count: int,
    now: datetime,
    limit: int,
    unfinished: int = 0,
    buffered: int = 0,
    last_run_at: datetime | None = None,
) -> Plan:
    """Decide about the fire times from ``fire_at`` to ``now``.

    ``fire_at`` is the schedule's next fire time and is due. At most ``limit`` fire times become
    runs; with ``catch_up="all"`` the others stay due for the next pass. ``run_count`` is the number
    of runs so far. ``unfinished`` runs count for overlap, and ``buffered`` of these are not sent.
    ``last_run_at`` is the fire time of the newest run.
    """
    made = _plan(
        spec,
        fire_at=fire_at,
        run_count=run_count,
        now=now,
        limit=limit,
        unfinished=unfinished,
        buffered=buffered,
        last_run_at=last_run_at,
    )
    if not isinstance(spec.trigger, SkippingTrigger) or made.next_fire_at == fire_at:
        return made
    passed = _passed(spec, before=made.next_fire_at, now=now)
    return made._replace(skips=made.skips + _taken_out(spec, passed), passed=passed)


def _passed(spec: ScheduleSpec, *, before: datetime | None, now: datetime) -> _Instants:
    """Return the instants of ``skip()`` up to ``now`` and before ``before``."""
    if not isinstance(spec.trigger, SkippingTrigger):
        return ()
    return tuple(at for at in spec.trigger.skipped if at <= now and (before is None or at < before))


def _taken_out(spec: ScheduleSpec, passed: _Instants) -> tuple[Skip, ...]:
    """Return those of the instants that are fire times, with the reasons of ``skip()``."""
    if not isinstance(spec.trigger, SkippingTrigger):
        return ()
    reasons = spec.trigger.skipped
    return tuple(Skip(at, 1, reasons[at]) for at in passed if takes_out(spec, at))


def takes_out(spec: ScheduleSpec, at: datetime) -> bool:
    """Return whether ``at`` is a fire time of the schedule that ``skip()`` took out."""
    is_in_span = (spec.start_at is None or spec.start_at <= at) and (
        spec.end_at is None or at <= spec.end_at
    )
    trigger = spec.trigger
    return isinstance(trigger, SkippingTrigger) and is_in_span and trigger.takes_out(at)


def _plan(
    spec: ScheduleSpec,
    *,
    fire_at: datetime,
    run_count: int,
    now: datetime,
    limit: int,
    unfinished: int,
    buffered: int,
    last_run_at: datetime | None,
) -> Plan:
    first = unskipped(spec, fire_at)
    if first is None:
        # skip() took out all fire times that are left.
        return Plan(next_fire_at=next_planned(spec, max(fire_at - MICROSECOND, now)))
    if first > fire_at and run_at(spec, first) > now:
        return Plan(next_fire_at=first)
    fire_at = first
    until = due_until(spec, fire_at, now)
    if spec.max_runs is not None:
        limit = min(limit, spec.max_runs - run_count)
    if limit <= 0 or (spec.end_at is not None and fire_at > spec.end_at):
        return Plan()
    if fire_at > until:
        # The fire time is not due. For example, manual SQL has moved next_run_at.
        return Plan(next_fire_at=fire_at)
    if spec.quiet is not None and spec.quiet.end(now) > now:
        return Plan(next_fire_at=fire_at)
    catch_up = _apply_catch_up(spec, fire_at, until, now, limit)
    wanted, decided_until = catch_up.wanted, catch_up.decided_until
    overlap = _apply_overlap(spec.overlap, wanted, unfinished=unfinished, buffered=buffered)
    made = len(overlap.send) + len(overlap.buffered)
    exhausted = spec.max_runs is not None and run_count + made >= spec.max_runs
    if wanted:
        decided_until = max(decided_until, wanted[-1] + spec.min_interval - MICROSECOND)
    near = _too_near(spec, fire_at, wanted, last_run_at)
    return Plan(
        send=overlap.send,
        buffered=overlap.buffered,
        skips=tuple(filter(None, (catch_up.missed, overlap.overlapped, near))),
        replaces=spec.overlap == "cancel_previous" and unfinished > 0 and bool(overlap.send),
        next_fire_at=None if exhausted else _until_end(spec, catch_up.upcoming, decided_until),
    )


def _until_end(
    spec: ScheduleSpec, upcoming: datetime | None, decided_until: datetime
) -> datetime | None:
    """Return the first fire time after ``decided_until``. It is ``upcoming`` if that is later."""
    if upcoming is None or upcoming <= decided_until:
        return next_planned(spec, decided_until)
    is_open = spec.end_at is None or upcoming <= spec.end_at
    return upcoming if is_open else next_planned(spec, decided_until)


def _too_near(
    spec: ScheduleSpec, fire_at: datetime, wanted: Sequence[datetime], last_run_at: datetime | None
) -> Skip | None:
    """Return the Skip for the fire times that follow a run by less than ``min_interval``.

    The runs have the ``wanted`` fire times. If ``fire_at`` directly follows ``last_run_at``, that
    run counts as well. Fire times after the newest wanted one have not passed: the pass of the fire
    time that follows it reports them.
    """
    earlier = list(wanted[:-1])
    if last_run_at is not None:
        first = spec.trigger.next_after(last_run_at)
        # Usually no fire time lies between the two.
        is_between = first is not None and first < fire_at
        if is_between and following(spec, last_run_at) == fire_at:
            earlier.insert(0, last_run_at)
    if not earlier:
        return None
    near = []
    for instant in earlier:
        first = next_fire(spec, instant)
        if first is not None and first < instant + spec.min_interval:
            near.append(_skip(spec, first, instant + spec.min_interval - MICROSECOND, TOO_NEAR))
    skips = [skip for skip in near if skip is not None]
    return Skip(skips[-1].newest, sum(skip.count for skip in skips), TOO_NEAR) if skips else None


def due_until(spec: ScheduleSpec, fire_at: datetime, now: datetime) -> datetime:
    """Return the instant up to which fire times are due.

    A fire time whose offset ends after ``now`` is not due.
    """
    until = now if spec.end_at is None else min(now, spec.end_at)
    if not spec.window:
        return until
    while True:
        newest = spec.trigger.latest_until(after=fire_at, until=until)
        if newest is None or run_at(spec, newest) <= now:
            return until
        # All fire times of one quiet time are due together.
        first = newest if spec.quiet is None else spec.quiet.start(newest)
        until = max(first, fire_at) - MICROSECOND


def most_admitted(spec: ScheduleSpec) -> int | None:
    """Return how many fire times of one pass ``overlap`` admits, or None for all.

    No run is unfinished before them.
    """
    return {"skip": 1, "buffer_one": 2}.get(spec.overlap)


def _apply_overlap(overlap: str, wanted: _Instants, *, unfinished: int, buffered: int) -> _Overlap:
    """Split the wanted fire times by the overlap policy."""
    reason = _OVERLAP_REASONS.get(overlap)
    if reason is None:
        return _Overlap(wanted)
    sent = 0 if unfinished else 1
    admitted = sent + (1 if overlap == "buffer_one" and not buffered else 0)
    skipped = wanted[admitted:]
    overlapped = Skip(skipped[-1], len(skipped), reason) if skipped else None
    return _Overlap(wanted[:sent], wanted[sent:admitted], overlapped)


def _apply_catch_up(
    spec: ScheduleSpec, fire_at: datetime, until: datetime, now: datetime, limit: int
) -> _CatchUp:
    if _sends_all(spec):
        return _catch_up_all(spec, fire_at, until, now, limit)
    return _catch_up_newest(spec, fire_at, until, now)


def _sends_all(spec: ScheduleSpec) -> bool:
    """Return whether ``catch_up`` sends all fire times that are due together, not the newest."""
    # With cancel_previous, each run would cancel the previous one, so only the newest is sent.
    return spec.catch_up == "all" and spec.overlap != "cancel_previous"


def _catch_up_newest(
    spec: ScheduleSpec, fire_at: datetime, until: datetime, now: datetime
) -> _CatchUp:
    following_at = spec.trigger.next_after(fire_at)
    newest = fire_at
    # Usually no fire time was missed, and next_after costs less than latest_until.
    if following_at is not None and following_at <= until:
        newest = spec.trigger.latest_until(after=fire_at, until=until) or fire_at
        following_at = None
    oldest = _oldest_allowed(spec, fire_at, now)
    if oldest is not None and newest < oldest:
        return _CatchUp((), _skip(spec, fire_at, newest, _too_old(spec)), until, following_at)
    missed = _skip(spec, fire_at, newest - MICROSECOND, SUPERSEDED)
    return _CatchUp((newest,), missed, until, following_at)


def _catch_up_all(
    spec: ScheduleSpec, fire_at: datetime, until: datetime, now: datetime, limit: int
) -> _CatchUp:
    oldest = _oldest_allowed(spec, fire_at, now)
    first: datetime | None = fire_at
    missed = None
    if oldest is not None and fire_at < oldest:
        missed = _skip(spec, fire_at, min(oldest - MICROSECOND, until), _too_old(spec))
        first = spec.trigger.next_after(oldest - MICROSECOND)
    wanted = tuple(_fire_times(spec, first, until, limit))
    is_partial = len(wanted) == limit or (wanted and not spec.trigger.has_spare_budget)
    return _CatchUp(wanted, missed, wanted[-1] if is_partial else until)


def _fire_times(
    spec: ScheduleSpec, first: datetime | None, until: datetime, limit: int
) -> Iterator[datetime]:
    fire_at = first
    for _ in range(limit):
        if fire_at is None or fire_at > until:
            return
        yield fire_at
        if not spec.trigger.has_spare_budget:
            # The budget is nearly spent. Later fire times stay due, as do those beyond ``limit``.
            return
        fire_at = following(spec, fire_at)


def _oldest_allowed(spec: ScheduleSpec, fire_at: datetime, now: datetime) -> datetime | None:
    limits = [spec.catch_up_window] if spec.catch_up_window is not None else []
    if spec.catch_up == "none":
        limits.append(spec.grace)
    # A window and quiet hours delay a fire time on purpose. That delay does not count as late.
    if not limits:
        return None
    oldest = now - min(limits)
    start = _start(spec, oldest)
    if spec.quiet is not None and start != oldest:
        # The time before the quiet time and the time after it count together.
        oldest = start - min(limits) + max(now - spec.quiet.end(oldest - MICROSECOND), timedelta(0))
    return earliest_due(spec, oldest, since=fire_at)


def _too_old(spec: ScheduleSpec) -> str:
    if spec.catch_up == "none":
        return "missed: no beat could send it in time, and catch_up is 'none'"
    return "missed: older than catch_up_window when a beat could send it"


def _skip(spec: ScheduleSpec, fire_at: datetime, until: datetime, reason: str) -> Skip | None:
    """Return the Skip for the fire times in [fire_at, until], or None if there are none."""
    if fire_at > until:
        return None
    newest = spec.trigger.latest_until(after=fire_at, until=until) or fire_at
    limit = FAST_COUNT_LIMIT if spec.trigger.counts_fast else COUNT_LIMIT
    others = spec.trigger.count_until(after=fire_at, until=until, limit=limit - 1)
    return Skip(newest, 1 + others, reason)
