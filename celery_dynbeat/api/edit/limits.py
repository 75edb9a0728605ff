"""The limits that settings set for owners: which tasks, how often, how many schedules.

dynbeat_owner_limits sets them by owner. A create locks the rows of the owners whose number of
schedules is limited, in the order of their names, and then counts their schedules. Two simultaneous
creates therefore cannot exceed a limit.

dynbeat_min_interval is checked against the next SAMPLE fire times, which are computed in the same
way as beat computes them. For a cron expression this check takes about 10 ms. A minimum that
follows from the text is therefore tried first, and measured intervals are cached. If a later fire
time is too close, beat skips it (planning).
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError, OwnerLimitError
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.text import format_seconds
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    spec_from_row,
    with_search_budget,
    with_skipped,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import owners
from celery_dynbeat.triggers import Cron, Every, Once, Trigger
from celery_dynbeat.triggers.base import PLAN_STEPS, SAMPLE
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.wrappers import check_preparation

if TYPE_CHECKING:
    from celery_dynbeat.common.owner_limits import Limit

_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), 24 * 60
#: The largest forward change of a clock in the tz database from 2026 on (Antarctica/Troll).
_MAX_CLOCK_CHANGE = timedelta(hours=2)


def check(
    context: Context,
    columns: ScheduleColumns,
    *,
    trigger: Trigger | None,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Raise InvalidScheduleError if a schedule with these columns would exceed a limit.

    ``trigger`` is the caller's new trigger, and ``calendars`` are those that it uses. None means
    that the trigger does not change; it is then not checked.
    """
    check_task_allowed(context.settings, owner=columns.owner, task=columns.task)
    if trigger is not None:
        check_trigger(context, columns, trigger=trigger, calendars=calendars, now=now)


def check_trigger(
    context: Context,
    columns: ScheduleColumns,
    *,
    trigger: Trigger,
    calendars: Calendars,
    now: datetime,
    any_interval: bool = False,
) -> None:
    """Raise InvalidScheduleError if ``trigger`` would exceed a limit.

    ``columns`` contains the same trigger. With ``any_interval`` only its cost is limited.
    """
    settings, owner = context.settings, columns.owner
    minimum = settings.min_interval
    if settings.owner_limits is not None:
        minimum = min_interval_of(settings, owner).value
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
            raise _interval_error(min_interval_of(settings, owner), shortest, given=trigger)


def _check_cost(spec: ScheduleSpec, *, given: Trigger, after: datetime) -> None:
    """Raise InvalidScheduleError if a plan of ``spec`` takes too many steps.

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
        raise invalid("trigger", given, str(error)) from error


def min_interval_of(settings: Settings, owner: str) -> "Limit":
    """Return the shortest interval of a schedule of ``owner``, and which limit it is."""
    default = settings.min_interval
    return _own(settings, owner, "min_interval") or _limit(default, owner, "dynbeat_min_interval")


def allowed_tasks_of(settings: Settings, owner: str) -> "Limit | None":
    """Return the patterns of which a task of ``owner`` must match one. None allows any task."""
    own = _own(settings, owner, "allowed_tasks")
    if own is not None or settings.allowed_tasks is None or not owner:
        return own
    return _limit(settings.allowed_tasks, owner, "dynbeat_allowed_tasks")


def max_schedules_of(settings: Settings, owner: str) -> "Limit | None":
    """Return the limit on the number of schedules of ``owner``.

    The application itself (owner ``""``) has no limit.
    """
    own, default = _own(settings, owner, "max_schedules"), settings.max_schedules_per_owner
    if own is not None or default is None or not owner:
        return own
    return _limit(default, owner, "dynbeat_max_schedules_per_owner")


def remaining_of(settings: Settings, session: Session, owner: str) -> int | None:
    """Return how many more schedules ``owner`` may have, or None without a limit."""
    limit = max_schedules_of(settings, owner)
    if limit is None:
        return None
    most: int = limit.value
    return max(most - owners.count_unlocked(session, [owner])[owner], 0)


def _own(settings: Settings, owner: str, field: str) -> "Limit | None":
    if settings.owner_limits is None or not owner:
        return None
    return settings.owner_limits.value(owner, field)


def _limit(value: Any, owner: str, setting: str) -> "Limit":
    # A late import: most applications have no limits by owner.
    from celery_dynbeat.common.owner_limits import Limit  # noqa: PLC0415

    return Limit(value, owner, setting)


def _quotas(settings: Settings, owners: Collection[str]) -> "Mapping[str, Limit]":
    """Return the limits that apply to new schedules, by owner in the order of locks."""
    if settings.max_schedules_per_owner is None and settings.owner_limits is None:
        return {}
    found = {owner: max_schedules_of(settings, owner) for owner in sorted(owners)}
    return {owner: limit for owner, limit in found.items() if limit is not None}


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
    """Raise OwnerLimitError if an owner would exceed its limit.

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
    for owner, limit in quotas.items():
        used = present.get(owner, 0) + (planned or {}).get(owner, 0)
        if used + wanted[owner] > limit.value:
            raise _quota_error(limit, used=used, wanted=wanted[owner])


def _quota_error(limit: "Limit", *, used: int, wanted: int) -> OwnerLimitError:
    msg = (
        f"{limit.whose} has {used} schedules and would create {wanted} more, but {limit.setting} ="
        f" {limit.value}: delete schedules (paused and finished schedules also count), or raise the"
        " setting"
    )
    return OwnerLimitError(
        msg,
        owner=limit.owner,
        used=used,
        wanted=wanted,
        limit=limit.value,
        setting=limit.setting,
    )


def _interval_error(limit: "Limit", shortest: timedelta, *, given: Trigger) -> InvalidScheduleError:
    rule = (
        f"two of its next {SAMPLE} fire times are {format_seconds(shortest)} apart,"
        f" but {limit.named} = {format_seconds(limit.value)}: choose a trigger that fires"
        " less often, or lower the setting (0: no limit)"
    )
    return invalid("trigger", given, rule)


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
