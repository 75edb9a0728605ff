"""The limits of dynbeat_owner_limits in the calls of the API, and how much of them is used.

A create locks the rows of the owners whose number of schedules is limited, in the order of their
names, and then counts their schedules. Two simultaneous creates therefore cannot exceed a limit.

dynbeat_min_interval is checked against the next SAMPLE fire times, which are computed in the same
way as beat computes them. For a cron expression this check takes about 10 ms. A minimum that
follows from the text is therefore tried first, and measured intervals are cached. If a later fire
time is too close, beat skips it (planning).
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.results import Usage
from celery_dynbeat.common.errors import InvalidArgumentError, InvalidTriggerError, LimitError
from celery_dynbeat.common.owner_limits import setting_of
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import described_owner, format_seconds
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    spec_from_row,
    with_search_budget,
    with_skipped,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners, places
from celery_dynbeat.triggers import Cron, Every, Once, Trigger
from celery_dynbeat.triggers.base import PLAN_STEPS, SAMPLE
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.wrappers import check_preparation

_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), 24 * 60
#: The largest forward change of a clock in the tz database from 2026 on (Antarctica/Troll).
_MAX_CLOCK_CHANGE = timedelta(hours=2)


def check_trigger(
    context: Context,
    columns: Schedule,
    trigger: Trigger,
    *,
    calendars: Calendars,
    now: datetime,
    any_interval: bool = False,
) -> None:
    """Raise InvalidArgumentError if ``trigger`` would exceed a limit.

    ``columns`` contains the same trigger. With ``any_interval`` only its cost is limited.
    """
    settings, owner = context.settings, columns.owner
    minimum, setting = min_interval_of(settings, owner)
    has_min_interval = any_interval or _has_min_interval(trigger, minimum)
    if has_min_interval and not trigger.needs_budget:
        return
    spec = with_skipped(spec_from_row(columns, context.settings, calendars))
    after = now if spec.start_at is None else max(now, spec.start_at)
    if trigger.needs_budget:
        _check_cost(spec, given=trigger, after=after)
    if not has_min_interval:
        # Rounded to the minute, so that calls within the same minute share one cache entry.
        shortest = _shortest_interval(spec.trigger, after.replace(second=0, microsecond=0))
        if shortest is not None and shortest < minimum:
            raise _interval_error(shortest, minimum, setting=setting, given=trigger)


def _check_cost(spec: ScheduleSpec, *, given: Trigger, after: datetime) -> None:
    """Raise InvalidArgumentError if a plan of ``spec`` takes too many steps.

    A plan searches twice: for the fire time, and for the fire time after it. Both searches together
    may take half of beat's budget for a plan, because the searches for later fire times may take
    more.
    """
    try:
        # The anchor of the schedule can make this preparation longer than the caller's trigger's.
        check_preparation(spec.trigger, spec.trigger.preparation_steps)
        trigger = with_search_budget(spec, steps=PLAN_STEPS // 2).trigger
        fire_at = trigger.next_after(after)
        if fire_at is not None:
            trigger.next_after(fire_at)
    except InvalidTriggerError as error:
        raise invalid("trigger", given, str(error), "rule", part="spelling") from error


def min_interval_of(settings: Settings, owner: str) -> tuple[timedelta, str]:
    """Return the shortest interval of a schedule of ``owner``, and the name of the limit."""
    own = settings.owner_limits.of(owner).min_interval
    if own is None:
        return settings.min_interval, "dynbeat_min_interval"
    return own, setting_of("min_interval", owner)


def remaining_of(settings: Settings, session: Session, owner: str) -> int | None:
    """Return how many more schedules ``owner`` may have, or None without a limit."""
    most = settings.owner_limits.of(owner).max_schedules
    if most is None:
        return None
    return max(most - owners.count_unlocked(session, [owner])[owner], 0)


def _quotas(settings: Settings, owners: Collection[str]) -> Mapping[str, int]:
    """Return the limits that apply to new schedules, by owner in the order of locks."""
    found = {owner: settings.owner_limits.of(owner).max_schedules for owner in sorted(owners)}
    return {owner: most for owner, most in found.items() if most is not None}


def lock_owners(context: Context, session: Session, names: Collection[str]) -> None:
    """Block other transactions that create schedules of these owners, if a quota is set."""
    quotas = _quotas(context.settings, names)
    if quotas:
        owners.lock(session, quotas)


def check_quota(
    context: Context,
    session: Session,
    wanted: Mapping[str, int],
    *,
    planned: Mapping[str, int] | None = None,
) -> None:
    """Raise LimitError if an owner would exceed its limit.

    ``wanted`` is the number of new schedules for each owner. Call this in the transaction that
    inserts the schedules, because it locks the owners. Paused and finished schedules count. The
    application itself (owner ``""``) has no limit. With ``planned`` it only reads, for a
    transaction that inserts nothing: these are schedules that count as present.
    """
    quotas = _quotas(context.settings, wanted)
    if not quotas:
        return
    if planned is None:
        owners.lock(session, quotas)
        present = owners.count_schedules(session, quotas)
    else:
        present = owners.count_unlocked(session, quotas)
    for owner, most in quotas.items():
        used = present.get(owner, 0) + (planned or {}).get(owner, 0)
        if used + wanted[owner] > most:
            raise _quota_error(owner, most, used=used, wanted=wanted[owner])


def _quota_error(owner: str, most: int, *, used: int, wanted: int) -> LimitError:
    setting = setting_of("max_schedules")
    msg = (
        f"{described_owner(owner)} has {used} schedules and would create {wanted} more, but"
        f" {setting} = {most}: delete schedules (paused and finished schedules also count), or"
        " raise the setting"
    )
    return LimitError(msg, owner=owner, used=used, wanted=wanted, limit=most, setting=setting)


def _interval_error(
    shortest: timedelta, minimum: timedelta, *, setting: str, given: Trigger
) -> InvalidArgumentError:
    rule = (
        f"two of its next {SAMPLE} fire times are {format_seconds(shortest)} apart,"
        f" but {setting} = {format_seconds(minimum)}: choose a trigger that fires"
        " less often, or lower the setting (0: no limit)"
    )
    return invalid("trigger", given, rule, "too_often", minimum=format_seconds(minimum))


@lru_cache(maxsize=8192)
def _shortest_interval(trigger: Trigger, after: datetime) -> timedelta | None:
    return trigger.shortest_interval(after=after)


def _has_min_interval(trigger: Trigger, minimum: timedelta) -> bool:
    """Return whether the trigger's text proves that its fire times are ``minimum`` apart."""
    if isinstance(trigger, Every):
        return trigger.interval is not None and trigger.interval >= minimum
    if isinstance(trigger, Cron):
        # All fire times of a Cron are on whole seconds.
        return minimum <= _SECOND or minimum <= minimum_gap(trigger)
    return isinstance(trigger, Once) or not minimum


def minimum_gap(cron: Cron) -> timedelta:
    """Return a lower bound of the interval between two fire times of ``cron``, in any time zone.

    - Without a seconds field they are whole minutes apart: all clocks change by whole minutes.
    - A fixed time of day fires once a day. A forward clock change makes it earlier by its length.
    - A wildcard time fires twice in an hour that the clock repeats, and an ``H`` has no value yet.
      For both the bound is one minute.
    """
    fields = parse_expression(cron.expression)
    if fields.second is not None:
        return _SECOND
    if fields.wildcard or fields.hashed:
        return _MINUTE
    hours, minutes = fields.hour.values, fields.minute.values
    times = sorted(60 * hour + minute for hour in hours for minute in minutes)
    shortest = min(later - earlier for earlier, later in pairwise([*times, times[0] + _DAY]))
    return max(_MINUTE, timedelta(minutes=shortest) - _MAX_CLOCK_CHANGE)


def usage_of(
    context: Context, session: Session | None, owner: str, *, settings: Settings | None = None
) -> Usage:
    """Return the usage of an owner, without locks."""
    settings = settings or context.settings
    most = settings.owner_limits.of(owner).max_schedules

    cap = settings.owner_limits.cap_of(owner)

    def work(session: Session) -> tuple[int, int, int]:
        count = owners.count_unlocked(session, [owner])[owner]
        if cap is None:
            return count, 0, 0
        running = places.in_use(session, [cap.key])[cap.key]
        return count, running, places.count_waiting(session, owner=owner)

    schedules, running, waiting = context.read_many(session, work)
    return Usage(
        owner=owner,
        schedules=schedules,
        max_schedules=most,
        running=running,
        waiting=waiting,
        max_running=None if cap is None else cap.max_running,
        running_key=None if cap is None else cap.key,
    )
