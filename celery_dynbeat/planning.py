"""Which fire times become runs: the rules of a schedule, as pure functions of an instant.

Nothing here reads a clock, a table or a setting. Source of the rules: "Time" and "Policies" of
docs/explanation/design.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from celery_dynbeat.triggers import Trigger, parse_trigger

#: The smallest step between two instants that the databases can tell apart.
TICK = timedelta(microseconds=1)
#: Missed fire times are counted up to here; beyond it the count says "at least".
COUNT_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a schedule asks for, apart from what it has done so far.

    ``catch_up`` is ``"latest"``, ``"all"`` or ``"none"``. A fire time older than
    ``catch_up_window`` is not sent; with ``"none"`` one older than ``grace`` is not, where
    ``grace`` is the delay that still counts as on time.
    """

    trigger: Trigger
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    catch_up: str = "latest"
    catch_up_window: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Skip:
    """Fire times that are not sent: how many (at most COUNT_LIMIT are counted), and why."""

    newest: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass does with one schedule. ``next_fire_at`` None: the schedule has finished."""

    send: tuple[datetime, ...]
    skip: Skip | None
    next_fire_at: datetime | None


class RuleColumns(Protocol):
    """The columns of a schedule that make up its rule; durations in seconds."""

    trigger_kind: str
    trigger_spec: str
    timezone: str
    anchor_at: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    catch_up: str | None
    catch_up_window: float | None
    created_at: datetime


def rule_of(columns: RuleColumns, *, catch_up: str, grace: timedelta) -> Rule:
    """Return the rule that a row states; ``catch_up`` serves where the row leaves it open.

    Raises InvalidTriggerError when the trigger's text or zone is damaged.
    """
    trigger = parse_trigger(columns.trigger_kind, columns.trigger_spec, timezone=columns.timezone)
    window = columns.catch_up_window
    return Rule(
        trigger=trigger.anchored_at(columns.start_at or columns.anchor_at or columns.created_at),
        start_at=columns.start_at,
        end_at=columns.end_at,
        max_runs=columns.max_runs,
        catch_up=columns.catch_up or catch_up,
        catch_up_window=None if window is None else timedelta(seconds=window),
        grace=grace,
    )


def first_fire(rule: Rule, *, now: datetime) -> datetime | None:
    """Return the first fire time after ``now``, or None when there is none.

    A ``start_at`` in the future may itself be a fire time.
    """
    after = now if rule.start_at is None else max(now, rule.start_at - TICK)
    return _next(rule, after)


def plan(rule: Rule, *, fire_at: datetime, run_count: int, now: datetime, limit: int) -> Plan:
    """Decide about the fire times from ``fire_at`` up to ``now``.

    ``fire_at`` is the schedule's next fire time, and due. At most ``limit`` fire times are sent;
    with ``catch_up="all"`` the rest stays due for the next pass. ``run_count`` counts the runs made
    so far.
    """
    until = now if rule.end_at is None else min(now, rule.end_at)
    if rule.max_runs is not None:
        limit = min(limit, rule.max_runs - run_count)
    if fire_at > until or limit <= 0:
        return Plan((), None, None)
    decided = _all(rule, fire_at, until, now, limit) if rule.catch_up == "all" else None
    send, skip, reached = decided or _newest_only(rule, fire_at, until, now)
    exhausted = rule.max_runs is not None and run_count + len(send) >= rule.max_runs
    return Plan(send, skip, None if exhausted else _next(rule, reached))


_Decision = tuple[tuple[datetime, ...], Skip | None, datetime]


def _newest_only(rule: Rule, fire_at: datetime, until: datetime, now: datetime) -> _Decision:
    newest = rule.trigger.latest_until(after=fire_at, until=until) or fire_at
    oldest = _oldest_allowed(rule, now)
    if oldest is not None and newest < oldest:
        return (), _skip(rule, fire_at, newest, _too_old(rule)), until
    skip = _skip(rule, fire_at, newest - TICK, "missed: a newer fire time was sent instead")
    return (newest,), skip, until


def _all(rule: Rule, fire_at: datetime, until: datetime, now: datetime, limit: int) -> _Decision:
    oldest = _oldest_allowed(rule, now)
    first: datetime | None = fire_at
    skip = None
    if oldest is not None and fire_at < oldest:
        skip = _skip(rule, fire_at, min(oldest - TICK, until), _too_old(rule))
        first = rule.trigger.next_after(oldest - TICK)
    send = tuple(_fire_times(rule.trigger, first, until, limit))
    full = len(send) == limit
    return send, skip, send[-1] if full else until


def _fire_times(
    trigger: Trigger,
    first: datetime | None,
    until: datetime,
    limit: int,
) -> Iterator[datetime]:
    fire_at = first
    for _ in range(limit):
        if fire_at is None or fire_at > until:
            return
        yield fire_at
        fire_at = trigger.next_after(fire_at)


def _oldest_allowed(rule: Rule, now: datetime) -> datetime | None:
    limits = [rule.catch_up_window] if rule.catch_up_window is not None else []
    if rule.catch_up == "none":
        limits.append(rule.grace)
    return now - min(limits) if limits else None


def _too_old(rule: Rule) -> str:
    if rule.catch_up == "none":
        return "missed: no beat could send it in time, and catch_up is 'none'"
    return "missed: older than catch_up_window when a beat could send it"


def _skip(rule: Rule, fire_at: datetime, until: datetime, reason: str) -> Skip | None:
    """Return the Skip for the fire times in [fire_at, until], or None when there are none."""
    if fire_at > until:
        return None
    newest = rule.trigger.latest_until(after=fire_at, until=until) or fire_at
    others = rule.trigger.count_until(after=fire_at, until=until, limit=COUNT_LIMIT - 1)
    return Skip(newest, 1 + others, reason)


def _next(rule: Rule, after: datetime) -> datetime | None:
    fire_at = rule.trigger.next_after(after)
    if fire_at is None or (rule.end_at is not None and fire_at > rule.end_at):
        return None
    return fire_at
