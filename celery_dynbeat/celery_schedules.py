"""Celery's own schedules as triggers, and triggers as Celery's own schedules.

Celery's ``crontab`` asks for both day fields to match, where cron is content with either; it has
no zone but that of its application. Around a change of clocks the two are not the same: a ``Cron``
follows the rule of Debian's cron there.
"""

import re
from collections.abc import Collection
from datetime import timedelta

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Cron, Every, Trigger
from celery_dynbeat.triggers.cron.fields import Field, Fields, parse_fields
from celery_dynbeat.triggers.zones import lookup, same_clock

_SHORTEST_RANGE = 3
_STEP = re.compile(r"\*/[0-9]{1,2}")


def trigger_of(given: object, *, timezone: str, field: str = "schedule") -> Trigger:
    """Return the trigger that says the same as one of Celery's schedules.

    Also for what Celery takes for one: a number of seconds, a timedelta; a trigger stays itself.
    A ``crontab`` that belongs to an application is in its zone, any other in ``timezone``.

    Raises ``InvalidScheduleError`` with ``field`` for what no trigger says, ``InvalidTriggerError``
    for what a trigger refuses.
    """
    if isinstance(given, Trigger):
        return given
    if isinstance(given, timedelta | int | float):
        return Every(given)
    # Classes that somebody derived, or a clock of their own, may mean anything.
    if isinstance(given, BaseSchedule) and given.nowfun is None:
        if type(given) is crontab:
            return Cron(_cron_text(given), timezone=_zone(given) or timezone, day_or=False)
        if type(given) is schedule and not given.relative:
            return Every(given.run_every)
        if type(given) is solar:
            from celery_dynbeat.triggers import Solar  # noqa: PLC0415 - which few have

            return Solar(given.event, latitude=given.lat, longitude=given.lon)
    rule = (
        "only crontab, solar, timedelta and numbers of seconds can be kept in the table, without"
        " relative and nowfun; use one of them, or a trigger such as Cron"
    )
    if isinstance(given, str):
        rule = (
            "a text is no schedule here; give a trigger: Cron(...), or"
            f" celery_dynbeat.triggers.trigger_from_text({shorten(given)})"
        )
    raise _refusal(given, rule, field=field)


def schedule_of(trigger: Trigger, *, app: Celery) -> BaseSchedule:
    """Return the schedule of Celery that says the same as ``trigger``, for ``app``.

    A ``Cron`` of five fields becomes a ``crontab``, elapsed time a ``schedule``, ``Solar`` a
    ``solar``. Raises ``InvalidScheduleError`` for anything else: it names what Celery cannot say.
    """
    if isinstance(trigger, Cron):
        return _crontab_of(trigger, app=app)
    from celery_dynbeat.triggers import Solar  # noqa: PLC0415 - which few have

    if isinstance(trigger, Solar):
        return solar(trigger.event, trigger.latitude, trigger.longitude, app=app)
    if not isinstance(trigger, Every):
        rule = "Celery has crontab, schedule and solar only; keep it in the table"
    elif trigger.interval is None:
        rule = "Celery knows no days and months of a calendar; use a Cron or a timedelta"
    elif trigger.anchor is not None:
        rule = "Celery's schedule counts from its last run; leave the anchor out"
    else:
        return schedule(trigger.interval, app=app)
    raise _refusal(trigger, rule)


def _zone(given: crontab) -> str | None:
    """Return the zone of the application that a crontab was given, None if it was given none."""
    # Read when set only: tz, a cached property, falls back on whichever application is current.
    known = "tz" in vars(given) or given._app is not None  # noqa: SLF001 - app falls back too
    return str(given.tz) if known else None


def _cron_text(given: crontab) -> str:
    return " ".join(
        (
            _field(given._orig_minute, given.minute, 0, 59),  # noqa: SLF001 - public in __reduce__
            _field(given._orig_hour, given.hour, 0, 23),  # noqa: SLF001
            _field(given._orig_day_of_month, given.day_of_month, 1, 31),  # noqa: SLF001
            _field(given._orig_month_of_year, given.month_of_year, 1, 12),  # noqa: SLF001
            _field(given._orig_day_of_week, given.day_of_week, 0, 6),  # noqa: SLF001
        ),
    )


def _field(original: object, values: Collection[int], lowest: int, highest: int) -> str:
    """Return the ``values`` that ``original`` stands for as both Celery and cron read them.

    A step over the whole range stays a wildcard, since that decides what happens when clocks
    change; one that is longer than the range is its first value. Runs become ranges, which keeps
    the longest text within its limit.
    """
    if set(values) == set(range(lowest, highest + 1)):
        return "*"
    if isinstance(original, str) and _STEP.fullmatch(original) and len(values) > 1:
        return original
    items, rest = list[str](), sorted(values)
    while rest:
        length = next((n for n, value in enumerate(rest) if value != rest[0] + n), len(rest))
        run, rest = rest[:length], rest[length:]
        items += [f"{run[0]}-{run[-1]}"] if length >= _SHORTEST_RANGE else map(str, run)
    return ",".join(items)


def _crontab_of(trigger: Cron, *, app: Celery) -> crontab:
    fields, zone = parse_fields(trigger.expression), trigger.timezone or "UTC"
    unsaid = _unsaid(fields, day_or=trigger.day_or)
    if unsaid:
        raise _refusal(trigger, f"a crontab cannot say {unsaid}")
    if not same_clock(lookup(zone), app.timezone):
        rule = f"a crontab is in the zone of its application, {app.timezone}; give the Cron that"
        raise _refusal(trigger, rule)
    any_day = trigger.day_or and _either(fields) and (fields.day.full or fields.weekday.full)
    return crontab(
        minute=_said(fields.minute, 0, 59),
        hour=_said(fields.hour, 0, 23),
        day_of_week="*" if any_day else _said(fields.weekday, 0, 6),
        day_of_month="*" if any_day else _said(fields.day, 1, 31),
        month_of_year=_said(fields.month, 1, 12),
        app=app,
    )


def _said(field: Field, lowest: int, highest: int) -> str:
    return _field(field.text, field.values, lowest, highest)


def _unsaid(fields: Fields, *, day_or: bool) -> str:
    """Name what a crontab has no words for, and the cure; "" if it has them for all."""
    if fields.second is not None and fields.second.values != (0,):
        return "seconds; leave out the sixth field"
    if any(field.rules or field.picks for field in fields.each):
        return "L, W, # and H; name the days and values themselves"
    if day_or and _either(fields) and not (fields.day.full or fields.weekday.full):
        return "either of two day fields, it wants both; make two, or set day_or=False"
    return ""


def _either(fields: Fields) -> bool:
    return not (fields.day.starred or fields.weekday.starred)


def _refusal(value: object, rule: str, *, field: str = "schedule") -> InvalidScheduleError:
    return InvalidScheduleError(f"{field} = {shorten(value)}: {rule}", field=field)
