"""What the settings let owners have: how often, which tasks, how many.

How often is measured on the fire times themselves, those that beat would see. That takes about
a hundredth of a second for a cron expression, so a distance that follows from the text comes
first, and what was measured is remembered. What lies too near beyond those that were looked at is
skipped by beat when its time comes (planning).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy.orm import Session

from celery_dynbeat.client.checks import invalid
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.errors import InvalidTriggerError, OwnerLimitError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning.schedule_spec import ScheduleSpec, SpecColumns, with_search_budget
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import owners
from celery_dynbeat.triggers import Cron, Every, Once, Trigger
from celery_dynbeat.triggers.base import SAMPLE
from celery_dynbeat.triggers.budgeted import check_preparation
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.search_budget import PLAN_STEPS

_SECOND, _MINUTE, _DAY = timedelta(seconds=1), timedelta(minutes=1), 24 * 60
#: No clock of the tz database goes forward by more from 2026 on (Antarctica/Troll).
_MAX_CLOCK_CHANGE = timedelta(hours=2)


def check(
    context: Context,
    row: Schedule,
    values: Mapping[str, Any],
    *,
    trigger: Trigger | None,
    now: datetime,
) -> None:
    """Raise InvalidScheduleError when ``row``, once it has ``values``, would break a limit.

    ``trigger`` is the one that the caller gives; one that stays as it was is not measured.
    """
    task = values.get("task", row.task)
    task_allowlist.check(context.settings, owner=row.owner, task=task)
    if trigger is None:
        return
    keeps = _has_known_gap(trigger, context.settings.min_interval)
    if keeps and not trigger.needs_budget:
        return
    seen = {name: values.get(name, getattr(row, name)) for name in SpecColumns.__annotations__}
    spec = context.spec(cast("SpecColumns", SimpleNamespace(**seen)))
    after = now if spec.start_at is None else max(now, spec.start_at)
    if trigger.needs_budget:
        _check_cost(spec, given=trigger, after=after)
    if not keeps:
        _check_interval(context.settings, spec.trigger, given=trigger, after=after)


def _check_cost(spec: ScheduleSpec, *, given: Trigger, after: datetime) -> None:
    """Raise InvalidScheduleError when planning ``rule`` takes too many steps.

    The two searches of a plan, for the fire time and for the one behind it, may take half of what
    beat gives to a plan: other fire times may take more than these.
    """
    try:
        # Counted from the anchor of the schedule, the rules in it may take longer.
        check_preparation(spec.trigger, spec.trigger.preparation_steps)
        trigger = with_search_budget(spec, steps=PLAN_STEPS // 2).trigger
        fire_at = trigger.next_after(after)
        if fire_at is not None:
            trigger.next_after(fire_at)
    except InvalidTriggerError as error:
        raise invalid("trigger", given, str(error)) from error


def lock_owner(context: Context, session: Session, owner: str) -> None:
    """Make others wait who would create a schedule of ``owner``, if their number is limited."""
    if context.settings.max_schedules_per_owner is not None and owner:
        owners.lock(session, [owner])


def check_quota(context: Context, session: Session, wanted: Mapping[str, int]) -> None:
    """Raise OwnerLimitError when an owner has no room for as many new schedules as are wanted.

    To be called within the transaction that inserts them. Paused and finished schedules count. The
    application itself (owner ``""``) has no limit.
    """
    limit = context.settings.max_schedules_per_owner
    limited = {owner: count for owner, count in wanted.items() if owner}
    if limit is None or not limited:
        return
    owners.lock(session, limited)
    present = owners.count_schedules(session, limited)
    for owner, count in sorted(limited.items()):
        if present.get(owner, 0) + count > limit:
            raise _too_many(owner, present=present.get(owner, 0), wanted=count, limit=limit)


def _too_many(owner: str, *, present: int, wanted: int, limit: int) -> OwnerLimitError:
    setting = "dynbeat_max_schedules_per_owner"
    msg = (
        f"owner {owner!r} has {present} schedules and asks for {wanted} more, {setting} ="
        f" {limit}: delete some (paused and finished ones count too), or raise the setting"
    )
    return OwnerLimitError(msg, owner=owner, setting=setting, limit=limit)


def _check_interval(
    settings: Settings, trigger: Trigger, *, given: Trigger, after: datetime
) -> None:
    least = settings.min_interval
    # By the minute: what is asked about again in the same call, or soon after, is known.
    shortest = _shortest_interval(trigger, after.replace(second=0, microsecond=0))
    if shortest is not None and shortest < least:
        rule = (
            f"two of its next {SAMPLE} fire times are {shortest.total_seconds():g} s apart,"
            f" dynbeat_min_interval = {least.total_seconds():g} s: let it fire less often, or lower"
            " the setting (0: no limit)"
        )
        raise invalid("trigger", given, rule)


@lru_cache(maxsize=8192)
def _shortest_interval(trigger: Trigger, after: datetime) -> timedelta | None:
    return trigger.shortest_interval(after=after)


def _has_known_gap(trigger: Trigger, least: timedelta) -> bool:
    """Whether fire times are known to keep the distance, without looking at any."""
    if isinstance(trigger, Every):
        return trigger.interval is not None and trigger.interval >= least
    if isinstance(trigger, Cron):
        # All of its fire times fall on whole seconds.
        return least <= _SECOND or least <= minimum_gap(trigger)
    return isinstance(trigger, Once) or not least


def minimum_gap(cron: Cron) -> timedelta:
    """Return a distance that the fire times of ``cron`` keep, by its text and in any zone.

    Without a seconds field they fall on whole minutes, since the changes of all clocks do. A fixed
    time of day comes once a day, early by a gap at most. One with wildcards comes twice in an hour
    that the clock repeats, and ``H`` is not known yet: of those it says no more.
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
