"""Describe the effect of a clock change on a fire time."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import EARLIEST, LATEST, describe_duration
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron.trigger import Cron
from celery_dynbeat.triggers.every import Every
from celery_dynbeat.triggers.zones import fold_at, gap_before, load_zone, offset_at, wall_at

_MICROSECOND = timedelta(microseconds=1)
_TZID = re.compile(r";TZID=[^:]+")


def note_on(
    trigger: Trigger, fire_at: datetime, *, previous: datetime | None, timezone: str
) -> str | None:
    """Return a note about the effect of a clock change on a fire time of ``trigger``, or None.

    ``previous`` is the previous fire time. ``timezone`` is the zone of a trigger without a zone.
    """
    # A Once can be later: there, the search for clock changes would leave the range of datetime.
    if not EARLIEST <= fire_at <= LATEST:
        return None
    for leaf in _leaves(trigger):
        if (note := _moved(leaf, fire_at)) is not None:
            return note
    name = trigger.timezone or timezone
    return _repeated(name, fire_at) or _shifted(name, fire_at, previous)


def _moved(leaf: Trigger, fire_at: datetime) -> str | None:
    """Return the note if ``leaf`` fires at ``fire_at`` for a wall time that the clock skipped."""
    name = leaf.timezone or "UTC"
    gap = gap_before(load_zone(name), fire_at)
    if gap is None or leaf.next_after(fire_at - _MICROSECOND) != fire_at:
        return None
    rule = _on_unchanging_clock(leaf)
    wall = _as_utc(wall_at(load_zone(name), fire_at))
    if rule is None or _fires_at(rule, wall):
        return None
    # RRule reads a skipped time with the offset before the gap; the others fire at its end.
    skipped: datetime | None = wall - gap.length
    if skipped is None or not _fires_at(rule, skipped):
        skipped = rule.next_after(_as_utc(gap.start) - _MICROSECOND)
    if skipped is None or skipped >= _as_utc(gap.end):
        return None
    return (
        f"{skipped:%H:%M} does not exist on {skipped:%Y-%m-%d} in {name}: the clock goes forward"
        f" from {gap.start:%H:%M} to {gap.end:%H:%M}"
    )


def _on_unchanging_clock(leaf: Trigger) -> Trigger | None:
    """Return the rule whose fire times in UTC are the wall times of ``leaf``."""
    if isinstance(leaf, Cron):
        return replace(leaf, timezone="UTC")
    if isinstance(leaf, Every):
        if leaf.interval is not None or leaf.anchor is None:
            return None
        anchor = wall_at(load_zone(leaf.timezone or "UTC"), leaf.anchor)
        return replace(leaf, anchor=_as_utc(anchor), timezone="UTC")
    if leaf.kind != "rrule":
        return None
    try:
        return type(leaf).from_spec(_TZID.sub("", leaf.spec), "UTC")
    except InvalidTriggerError:
        return None


def _repeated(name: str, fire_at: datetime) -> str | None:
    zone = load_zone(name)
    fold = fold_at(zone, fire_at)
    if fold is None:
        return None
    wall = wall_at(zone, fire_at)
    which = "second" if fold.second_pass else "first"
    return (
        f"the clock shows {wall:%H:%M} twice on {wall:%Y-%m-%d} in {name}: this is the {which} time"
    )


def _shifted(name: str, fire_at: datetime, previous: datetime | None) -> str | None:
    if previous is None:
        return None
    zone = load_zone(name)
    change = offset_at(zone, fire_at) - offset_at(zone, previous)
    if not change:
        return None
    direction = "forward" if change > timedelta() else "back"
    return (
        f"the clock of {name} went {direction} by {describe_duration(abs(change))} since the fire"
        " time before"
    )


def _leaves(trigger: Trigger) -> Iterator[Trigger]:
    """Yield the triggers that fire; excluded triggers do not."""
    parts: tuple[Trigger, ...] = getattr(trigger, "parts", ())
    if not parts:
        yield trigger
        return
    for part in parts if trigger.kind == "any_of" else parts[:1]:
        yield from _leaves(part)


def _fires_at(rule: Trigger, instant: datetime) -> bool:
    return rule.next_after(instant - _MICROSECOND) == instant


def _as_utc(wall: datetime) -> datetime:
    return wall.replace(tzinfo=UTC)
