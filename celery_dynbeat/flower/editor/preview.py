"""The content of the preview: a sentence, the next fire times in two zones, notes and warnings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.api import FireTime, Preview, ScheduleInfo
from celery_dynbeat.flower.base.zones import UTC, known_zone
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.clock_notes import note_on
from celery_dynbeat.triggers.zones import same_clock

#: Fire times that the preview shows.
COUNT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRow:
    """A fire time. ``remark`` is a change of the clock, a skip, or when a later run is sent."""

    at: datetime
    remark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    """The preview of a rule. ``viewer_zone`` is None if its clock equals the clock of ``zone``."""

    sentence: str
    zone: ZoneInfo
    viewer_zone: ZoneInfo | None
    rows: Sequence[PreviewRow]
    warnings: Sequence[str]
    empty: str = "It never fires."


def preview_of(preview: Preview, *, viewer: ZoneInfo) -> PreviewView:
    """Return the preview of an edited rule."""
    zone = _zone(preview.trigger, preview.timezone)
    rows = [PreviewRow(at=each.at, remark=each.note) for each in preview.fire_times]
    return PreviewView(
        sentence=preview.description,
        zone=zone,
        viewer_zone=_other(viewer, zone),
        rows=rows,
        warnings=[*map(str, preview.warnings)],
    )


def stored_preview(
    info: ScheduleInfo,
    trigger: Trigger,
    fire_times: Sequence[FireTime],
    *,
    owner_zone: str,
    warnings: Sequence[str],
    viewer: ZoneInfo,
) -> PreviewView:
    """Return the preview of a rule that was not edited, with the real next fire times."""
    zone, rows, previous = _zone(trigger, owner_zone), [], None
    for each in fire_times:
        clock_note = note_on(trigger, each.at, previous=previous, timezone=owner_zone)
        note = "; ".join(filter(None, (clock_note, each.wait_note))) or None
        remark = each.reason or "skipped" if each.is_skipped else note
        rows.append(PreviewRow(at=each.at, remark=remark))
        previous = each.at
    return PreviewView(
        sentence=trigger.describe(owner_zone),
        zone=zone,
        viewer_zone=_other(viewer, zone),
        rows=rows,
        warnings=warnings,
        empty=f"The schedule is {info.state}: it has no next fire time.",
    )


def _zone(trigger: Trigger, owner_zone: str) -> ZoneInfo:
    return known_zone(trigger.timezone or owner_zone) or UTC


def _other(viewer: ZoneInfo, zone: ZoneInfo) -> ZoneInfo | None:
    return None if same_clock(viewer, zone) else viewer
