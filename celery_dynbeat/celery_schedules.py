"""Convert Celery's own schedules to triggers, and triggers to Celery's own schedules.

In Celery's ``crontab`` both day fields must match, where in cron one is enough. A ``crontab`` is in
the zone of its application. Around a clock change a ``Cron`` differs from a ``crontab``: it follows
the rule of Debian's cron.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Cron, Every, Once, Solar, Trigger
from celery_dynbeat.triggers.cron.expression import CronExpression, CronField, parse_expression
from celery_dynbeat.triggers.zones import load_zone, same_clock

_SHORTEST_RANGE = 3
#: Packages whose models return Celery's schedules with the present time as their own clock.
_PEERS = ("django_celery_beat.", "sqlalchemy_celery_beat.")
_STEP = re.compile(r"\*/[0-9]{1,2}")


def trigger_of(given: object, *, timezone: str, field: str = "schedule") -> Trigger:
    """Return the trigger for one of Celery's schedules, a number of seconds or a timedelta.

    A trigger is returned as it is. A ``crontab`` of an application is in the application's zone,
    and any other ``crontab`` in ``timezone``. The ``schedule`` of a model of django-celery-beat or
    sqlalchemy-celery-beat is also accepted; if it is a crontab, it has its own zone.

    Raises ``InvalidArgumentError`` with ``field`` if there is no corresponding trigger, and
    ``InvalidTriggerError`` if the trigger would be invalid.
    """
    if isinstance(given, Trigger):
        return given
    if isinstance(given, timedelta | int | float):
        return Every(given)
    # A subclass, or a schedule with its own clock (nowfun), may behave differently.
    if isinstance(given, BaseSchedule) and (given.nowfun is None or _is_of_peer(given.nowfun)):
        name = type(given).__name__ if _is_of_peer(type(given)) else None
        if name == "clocked":
            return Once(vars(given)["clocked_time"])
        if type(given) is crontab or (isinstance(given, crontab) and name == "TzAwareCrontab"):
            return Cron(_crontab_text(given), timezone=_zone(given) or timezone, day_or=False)
        if type(given) is schedule and not given.relative:
            return Every(given.run_every)
        if type(given) is solar:
            return Solar(given.event, latitude=float(given.lat), longitude=float(given.lon))
    rule = (
        "only crontab, solar, timedelta and numbers of seconds can be stored, without relative and"
        " nowfun; use one of them, or a trigger such as Cron"
    )
    if isinstance(given, str):
        rule = (
            "text is not a schedule here; give a trigger: Cron(...), or"
            f" Trigger.from_text({shorten(given)})"
        )
    raise _refusal(given, rule, field=field)


def without_zone(trigger: Trigger, given: object, timezone: str | None) -> Trigger:
    """Return the trigger for ``given`` without its zone, if it is a ``crontab`` in ``timezone``.

    A ``crontab`` has the zone of its application and cannot name one. It therefore follows the zone
    of its owner like any trigger without a zone, unless ``dynbeat_timezone`` differs from Celery's
    zone.
    """
    if type(given) is crontab and isinstance(trigger, Cron) and trigger.timezone == timezone:
        return replace(trigger, timezone=None)
    return trigger


def schedule_of(trigger: Trigger, *, app: Celery) -> BaseSchedule:
    """Return Celery's schedule for ``trigger``, for the application ``app``.

    A ``Cron`` of five fields becomes a ``crontab``, an ``Every`` of elapsed time a ``schedule``,
    and ``Solar`` a ``solar``. Raises ``InvalidArgumentError`` for anything else. The error names
    the part that Celery does not support.
    """
    if isinstance(trigger, Cron):
        return _crontab_of(trigger, app=app)
    if isinstance(trigger, Solar):
        return solar(trigger.event, trigger.latitude, trigger.longitude, app=app)
    if not isinstance(trigger, Every):
        rule = "Celery has only crontab, schedule and solar; store it with create()"
    elif trigger.interval is None:
        rule = "Celery has no calendar time; use a Cron or a timedelta"
    elif trigger.anchor is not None:
        rule = "Celery's schedule counts from its last run; leave the anchor out"
    else:
        return schedule(trigger.interval, app=app)
    raise _refusal(trigger, rule)


def _is_of_peer(thing: object) -> bool:
    # By name: the packages are not imported, and may be absent.
    return str(getattr(thing, "__module__", "")).startswith(_PEERS)


def _zone(given: crontab) -> str | None:
    """Return the zone of a crontab or of its application, or None without an application."""
    # tz is a cached property. Unset, it falls back to the current application, so it is not read.
    known = "tz" in vars(given) or given._app is not None  # noqa: SLF001 - app falls back too
    return str(given.tz) if known else None


def _crontab_text(given: crontab) -> str:
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
    """Return a cron field for the ``values`` of ``original``, equal in Celery and in cron.

    A step over the whole range stays a wildcard, because wildcards behave differently around a
    clock change. A step longer than the range is written as its first value. Consecutive values
    become ranges, so that the text stays within its limit.
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
    fields, zone = parse_expression(trigger.expression), trigger.timezone or "UTC"
    unsupported = _unsupported(fields, day_or=trigger.day_or)
    if unsupported:
        raise _refusal(trigger, f"a crontab does not support {unsupported}")
    if not same_clock(load_zone(zone), app.timezone):
        rule = f"a crontab is in the zone of its application; give the Cron {app.timezone}"
        raise _refusal(trigger, rule)
    any_day = trigger.day_or and _is_either(fields) and (fields.day.full or fields.weekday.full)
    return crontab(
        minute=_crontab_field(fields.minute, 0, 59),
        hour=_crontab_field(fields.hour, 0, 23),
        day_of_week="*" if any_day else _crontab_field(fields.weekday, 0, 6),
        day_of_month="*" if any_day else _crontab_field(fields.day, 1, 31),
        month_of_year=_crontab_field(fields.month, 1, 12),
        app=app,
    )


def _crontab_field(field: CronField, lowest: int, highest: int) -> str:
    return _field(field.text, field.values, lowest, highest)


def _unsupported(fields: CronExpression, *, day_or: bool) -> str:
    """Return what a crontab does not support, with a hint; "" if it supports everything."""
    if fields.second is not None and fields.second.values != (0,):
        return "seconds; leave out the sixth field"
    if any(field.day_rules or field.hashed_items for field in fields.fields):
        return "L, W, # and H; list the days and values"
    if day_or and _is_either(fields) and not (fields.day.full or fields.weekday.full):
        return "one of two day fields: both must match; make two schedules, or set day_or=False"
    return ""


def _is_either(fields: CronExpression) -> bool:
    return not (fields.day.starred or fields.weekday.starred)


def _refusal(value: object, rule: str, *, field: str = "schedule") -> InvalidArgumentError:
    return InvalidArgumentError(f"{field} = {shorten(value)}: {rule}", field=field)
