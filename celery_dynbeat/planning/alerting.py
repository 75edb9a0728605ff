"""Decide from facts, rules and state which alerts open and which recover: pure functions.

    fact   --kinds_of: the rules of its schedule-->  kinds of alerts
    facts of one kind + the stored alert  --after_facts-->  open, open again, or only counted
    an open alert + its schedule + its last runs  --has_recovered-->  recovered or not

The result does not depend on when or by which beat a fact is evaluated. A fact that is older than
the last one of a recovered alert does not open it again, unless the clock was set back since then.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from celery_dynbeat.common.alert_kinds import AlertKind, Unsent
from celery_dynbeat.common.alert_rules import EffectiveRules
from celery_dynbeat.common.settings import MIN_SLOW
from celery_dynbeat.common.states import MIN_LATE, Status

if TYPE_CHECKING:
    from celery_dynbeat.planning.quiet_hours import Quiet

#: ``failing_since`` is written soon after the end of a run. After this time, ``failing_since``
#: alone decides.
FAILING_IS_WRITTEN = timedelta(minutes=10)
#: The longest snooze of an alert.
MAX_SNOOZE = timedelta(days=30)
_WAITING = (Status.PENDING, Status.SENT)
_FAILED = (Status.FAILED, Status.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that happened to a schedule. ``value`` is in seconds, or a number of runs."""

    kind: AlertKind
    at: datetime
    run_id: str | None = None
    value: float | None = None


class End(NamedTuple):
    """The end of a run that succeeded, failed or was lost."""

    at: datetime
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """The stored values of an alert. ``id`` is None for a new alert."""

    id: int | None = None
    opened_at: datetime
    last_at: datetime
    fact_count: int
    run_id: str | None = None
    value: float | None = None
    recovered_at: datetime | None = None
    unsent: str | None = None
    unsent_at: datetime | None = None
    snoozed_until: datetime | None = None
    owner_notice: str | None = None
    owner_notice_at: datetime | None = None


class AfterFacts(NamedTuple):
    """The alert after some facts, and whether they opened it."""

    state: AlertState
    opened: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The columns of a run that decide about a recovery."""

    status: str
    scheduled_for: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The columns of a schedule that decide about a recovery.

    ``runs`` are its last runs, in any order.

    A run may be claimed up to ``jitter`` after its fire time, which ``quiet`` hours delay.
    """

    enabled: bool
    error: str | None
    failing_since: datetime | None
    next_run_at: datetime | None
    jitter: timedelta = timedelta(0)
    quiet: "Quiet | None" = None
    runs: Sequence[RunState] = field(default=())


def completes_streak(ends: Collection[End], *, at: datetime, length: int) -> bool:
    """Return whether the last ``length`` runs that ended up to ``at`` have all failed.

    Runs that ended at the same instant have no order, so a failure counts as the later one.
    """
    last = sorted(end for end in ends if end.at <= at)[-length:]
    return len(last) == length and all(end.failed for end in last)


def kinds_of(fact: Fact, rules: EffectiveRules, ends: Collection[End]) -> Sequence[AlertKind]:
    """Return the kinds of alerts that ``fact`` opens. ``ends`` are the last ends of the schedule.

    A lost run counts as a failure of a streak. If a single failure is a streak, a lost run opens
    only one alert.
    """
    kind, value = fact.kind, fact.value or 0.0
    if kind in (AlertKind.FAILED, AlertKind.LOST):
        return _kinds_of_failure(fact, rules, ends)
    applies = {
        AlertKind.LATE: _exceeds(value, rules.late_after, MIN_LATE),
        AlertKind.SLOW: _exceeds(value, rules.slow_after, MIN_SLOW),
        AlertKind.SILENT: rules.silent_after is not None,
        AlertKind.FREQUENT: rules.frequent_above is not None,
        AlertKind.QUARANTINED: rules.quarantined,
        AlertKind.PAUSED: rules.paused,
    }
    return (kind,) if applies[kind] else ()


def _kinds_of_failure(
    fact: Fact, rules: EffectiveRules, ends: Collection[End]
) -> Sequence[AlertKind]:
    length = rules.after_failures
    kinds = [AlertKind.LOST] if fact.kind == AlertKind.LOST and rules.lost else []
    if length == 1:
        return kinds or [AlertKind.FAILED]
    if length is not None and completes_streak(ends, at=fact.at, length=length):
        kinds.append(AlertKind.FAILED)
    return kinds


def _exceeds(value: float, limit: timedelta | None, least: timedelta) -> bool:
    return limit is not None and value > max(limit, least).total_seconds()


def after_facts(
    state: AlertState | None,
    facts: Sequence[Fact],
    *,
    now: datetime,
    damping: timedelta = timedelta(0),
) -> AfterFacts | None:
    """Return the alert after ``facts`` of its kind; None if none of them is new to it.

    An alert that recovered less than ``damping`` ago continues: no message reports it again.
    """
    ordered = sorted(facts, key=lambda fact: fact.at)
    # If ``now`` is before the last fact, the clock was set back, and instants do not show the
    # order.
    if state is not None and state.recovered_at is not None and now >= state.last_at:
        ordered = [fact for fact in ordered if fact.at > state.last_at]
    if not ordered:
        return None
    if state is not None and _may_flap(state, ordered, now=now, damping=damping):
        return AfterFacts(after_snooze(_continued(state, ordered), now=now), opened=True)
    if state is None or state.recovered_at is not None:
        return AfterFacts(_opened(state, ordered, now=now), opened=True)
    return AfterFacts(after_snooze(_counted(state, ordered), now=now), opened=False)


def end_of_wait(since: datetime, wait: timedelta, *, now: datetime) -> datetime:
    """Return when a message that waits since an instant can be sent."""
    # The instant is so far ahead that the clock was set back. A smaller difference can be due to
    # another beat's clock.
    return now if since > now + wait else since + wait


def _is_snoozed(state: AlertState, *, now: datetime) -> bool:
    # An instant far beyond the longest snooze means that the clock was set back. An instant a
    # little beyond it means that clocks differ.
    return state.snoozed_until is not None and now < state.snoozed_until <= now + 2 * MAX_SNOOZE


def after_snooze(state: AlertState, *, now: datetime) -> AlertState:
    """Return an open alert, to be reported again if its snooze has ended."""
    if state.snoozed_until is None or _is_snoozed(state, now=now):
        return state
    return replace(state, snoozed_until=None, unsent=Unsent.OPENED, unsent_at=now)


def _opened(state: AlertState | None, facts: Sequence[Fact], *, now: datetime) -> AlertState:
    waits = state is not None and state.unsent == Unsent.OPENED
    new = AlertState(
        id=None if state is None else state.id,
        opened_at=facts[0].at,
        last_at=facts[-1].at,
        fact_count=len(facts),
        run_id=facts[-1].run_id,
        value=facts[-1].value,
        unsent=Unsent.OPENED,
        # A schedule that recovers and fails again must not delay its message.
        unsent_at=state.unsent_at if state is not None and waits else now,
    )
    if state is None or not _is_snoozed(state, now=now):
        return new
    return replace(new, unsent=None, unsent_at=None, snoozed_until=state.snoozed_until)


#: A person ends these, so that they do not flap.
ENDED_BY_PEOPLE = (AlertKind.QUARANTINED, AlertKind.PAUSED)


def _may_flap(
    state: AlertState, facts: Sequence[Fact], *, now: datetime, damping: timedelta
) -> bool:
    if state.recovered_at is None or facts[0].kind in ENDED_BY_PEOPLE:
        return False
    return timedelta(0) <= now - state.recovered_at < damping


def _continued(state: AlertState, facts: Sequence[Fact]) -> AlertState:
    """Return a recovered alert that is open again.

    The recovery of such an alert is no longer reported.
    """
    is_reported = state.unsent != Unsent.OPENED
    return replace(
        _counted(state, facts),
        recovered_at=None,
        unsent=None if is_reported else state.unsent,
        unsent_at=None if is_reported else state.unsent_at,
    )


def _counted(state: AlertState, facts: Sequence[Fact]) -> AlertState:
    last = facts[-1]
    # A state that lasts, such as a running run, is one fact, however often it is checked.
    new = {fact.run_id for fact in facts} - {state.run_id}
    counted = replace(state, fact_count=state.fact_count + len(new))
    if last.at < state.last_at:
        return counted
    return replace(counted, last_at=last.at, run_id=last.run_id, value=last.value)


def recovered(
    state: AlertState, *, now: datetime, reports: bool, rule_applies: bool = True
) -> AlertState:
    """Return the alert recovered at ``now``.

    If ``reports`` is true, the rules require a message about the alert.

    An opening that no message has reported yet is still reported, without a second message. While
    the alert is snoozed, nothing is reported.
    """
    if _is_snoozed(state, now=now):
        return replace(state, recovered_at=now, unsent=None, unsent_at=None)
    if state.unsent == Unsent.OPENED and rule_applies:
        return replace(state, recovered_at=now)
    if reports and rule_applies:
        return replace(state, recovered_at=now, unsent=Unsent.RECOVERED, unsent_at=now)
    return replace(state, recovered_at=now, unsent=None, unsent_at=None)


def applies(kind: AlertKind, rules: EffectiveRules) -> bool:
    """Return whether the rules know this kind of alert.

    An alert whose rule no longer applies is closed.
    """
    return {
        AlertKind.FAILED: rules.after_failures is not None,
        AlertKind.LOST: rules.lost,
        AlertKind.LATE: rules.late_after is not None,
        AlertKind.SLOW: rules.slow_after is not None,
        AlertKind.SILENT: rules.silent_after is not None,
        AlertKind.FREQUENT: rules.frequent_above is not None,
        AlertKind.QUARANTINED: rules.quarantined,
        AlertKind.PAUSED: rules.paused,
    }[kind]


def has_recovered(
    kind: AlertKind,
    state: AlertState,
    schedule: ScheduleState,
    rules: EffectiveRules,
    *,
    now: datetime,
) -> bool:
    """Return whether the state of the schedule is no longer what the alert reports.

    The regular check of the schedule decides about ``frequent``.
    """
    late = max(rules.late_after or MIN_LATE, MIN_LATE)
    slow = max(rules.slow_after or MIN_SLOW, MIN_SLOW)
    decide: Mapping[AlertKind, Callable[[], bool]] = {
        AlertKind.FAILED: lambda: _is_healthy(state, schedule, now=now),
        AlertKind.LOST: lambda: _is_healthy(state, schedule, now=now),
        AlertKind.QUARANTINED: lambda: schedule.error is None,
        AlertKind.PAUSED: lambda: schedule.enabled,
        AlertKind.LATE: lambda: _is_in_time(state, schedule, late, now=now),
        AlertKind.SLOW: lambda: _is_fast(state, schedule, slow, now=now),
        AlertKind.SILENT: lambda: not is_live(schedule) or _is_active(state, schedule),
    }
    return kind in decide and decide[kind]()


def _is_active(state: AlertState, schedule: ScheduleState) -> bool:
    return last_activity(schedule.runs, state.last_at) > state.last_at


def is_live(schedule: ScheduleState) -> bool:
    """Return whether the schedule has a next run: it is not paused, finished or quarantined."""
    return schedule.next_run_at is not None


def _is_healthy(state: AlertState, schedule: ScheduleState, *, now: datetime) -> bool:
    if schedule.failing_since is not None:
        return False
    last = _last_end(schedule.runs)
    if last is not None and (last.failed or last.at >= state.last_at):
        return not last.failed
    # The runs that were read did not end, or ended before the alert. A success may be older than
    # them, and then it has ended ``failing_since``, which may also not be written yet.
    return now - state.last_at > FAILING_IS_WRITTEN


def _last_end(runs: Sequence[RunState]) -> End | None:
    ends = [
        End(run.finished_at, run.status in _FAILED)
        for run in runs
        if run.finished_at is not None and run.status in (Status.SUCCEEDED, *_FAILED)
    ]
    # If both ended at the same instant, a success counts as the later one.
    return max(ends, key=lambda end: (end.at, not end.failed), default=None)


def _is_in_time(
    state: AlertState, schedule: ScheduleState, limit: timedelta, *, now: datetime
) -> bool:
    if schedule.next_run_at is None:
        return True
    if now - schedule.next_run_at > limit:
        return False
    runs = schedule.runs
    if any(run.status in _WAITING and now - run.created_at > limit for run in runs):
        return False
    # Measured from the fire time, because a claim stores facts of only some of the late runs.
    latest = schedule.jitter + limit
    return any(
        run.created_at > state.last_at
        and run.started_at is not None
        and run.started_at - run.created_at <= limit
        and run.started_at - _end_of_quiet(schedule, run.scheduled_for) <= latest
        for run in runs
    )


def _end_of_quiet(schedule: ScheduleState, instant: datetime) -> datetime:
    """Return the instant, or the end of the quiet time around it."""
    return instant if schedule.quiet is None else schedule.quiet.end(instant)


def _is_fast(
    state: AlertState, schedule: ScheduleState, limit: timedelta, *, now: datetime
) -> bool:
    runs = [run for run in schedule.runs if run.started_at is not None]
    if any(_is_running_since(run, now - limit) for run in runs):
        return False
    return any(
        run.finished_at is not None
        and run.started_at is not None
        and run.finished_at > state.last_at
        and run.finished_at - run.started_at <= limit
        and run.status in (Status.SUCCEEDED, Status.FAILED)
        for run in runs
    )


def _is_running_since(run: RunState, instant: datetime) -> bool:
    return run.status == Status.RUNNING and run.started_at is not None and run.started_at < instant


def last_activity(runs: Sequence[RunState], default: datetime) -> datetime:
    """Return when a run last started or a fire time was skipped, or ``default`` if never."""
    starts = [run.started_at for run in runs if run.started_at is not None]
    skips = [run.created_at for run in runs if run.status == Status.SKIPPED]
    return max([*starts, *skips], default=default)


#: A schedule that is due, or whose run is sent, for less than this may run at any moment.
MAY_START_WITHIN = timedelta(minutes=1)
#: ``frequent`` is checked twice in its span, within these limits.
_COUNT_EVERY = (timedelta(seconds=10), timedelta(minutes=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of the regular check of a schedule.

    ``silent_for`` and ``run_count`` are None if they cause no alert. ``is_frequent`` is None if
    there is no rule for it.
    """

    due_at: datetime
    silent_for: timedelta | None = None
    run_count: int | None = None
    is_frequent: bool | None = None


def check_schedule(
    schedule: ScheduleState,
    rules: EffectiveRules,
    *,
    since: datetime,
    is_held: bool,
    now: datetime,
) -> CheckResult | None:
    """Check whether a schedule is silent or too frequent; None if its rules need no check.

    ``since`` is when the schedule could run at the earliest: its start or its last edit.
    """
    silent = _check_silence(schedule, rules.silent_after, since=since, is_held=is_held, now=now)
    count, count_at = _count_runs(schedule, rules, now=now)
    instants = [at for at in (silent and silent[0], count_at) if at is not None]
    if not instants:
        return None
    is_frequent = None if count is None else count > (rules.frequent_above or 0)
    return CheckResult(
        due_at=min(instants),
        silent_for=silent[1] if silent else None,
        run_count=count if is_frequent else None,
        is_frequent=is_frequent,
    )


def _check_silence(
    schedule: ScheduleState,
    limit: timedelta | None,
    *,
    since: datetime,
    is_held: bool,
    now: datetime,
) -> tuple[datetime, timedelta | None] | None:
    """Return when to check again, and how long the schedule is silent if that is an alert."""
    if limit is None:
        return None
    if is_held or not is_live(schedule):
        return now + limit, None
    last = max(since, last_activity(schedule.runs, since))
    silent_at = last + limit
    # A run that quiet hours delay starts after their end.
    end = _end_of_quiet(schedule, silent_at)
    if end > silent_at:
        silent_at = end + schedule.jitter
    if now < silent_at:
        return silent_at, None
    again_at = now + min(limit, MAY_START_WITHIN)
    return again_at, None if _may_start(schedule, now=now) else now - last


def _may_start(schedule: ScheduleState, *, now: datetime) -> bool:
    due_at = schedule.next_run_at
    waiting = [run.created_at for run in schedule.runs if run.status in _WAITING]
    instants = waiting if due_at is None else [due_at, *waiting]
    return any(timedelta(0) <= now - instant < MAY_START_WITHIN for instant in instants)


def _count_runs(
    schedule: ScheduleState, rules: EffectiveRules, *, now: datetime
) -> tuple[int | None, datetime | None]:
    within = rules.frequent_within
    if rules.frequent_above is None or within is None:
        return None, None
    # A run that its task skipped has started.
    runs = [run for run in schedule.runs if run.status != Status.SKIPPED or run.started_at]
    count = sum(1 for run in runs if now - within < run.created_at <= now)
    shortest, longest = _COUNT_EVERY
    return count, now + min(max(within / 2, shortest), longest)
