"""Fragments of HTML that several pages show. PURE: they take ``now``.

Each function returns HTML in which all values are escaped. Templates write it with ``{% raw %}``.
The commands of a hint stand in backticks, as in ``Start it: `celery -A app dynbeat resume -- a`.``
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.api.results import HoldInfo
from celery_dynbeat.common.text import format_distance, format_duration
from celery_dynbeat.flower.templates import show

NOTHING = '<span class="db-none" aria-label="none">&ndash;</span>'
#: A command of ``celery dynbeat`` -> the button or the page that does the same.
_IN_THE_PAGES: Mapping[str, str] = {
    "hold --release": "the button Release",
    "list": "the page Schedules",
    "owner": "the page of the owner",
    "owner --held": "the page Beats",
    "rerun": "the button Rerun",
    "resume": "the button Resume",
    "run": "the button Run now",
    "runs": "the page of the run",
    "status": "the page Beats",
}
_COMMAND = re.compile(
    r"`(?P<code>(?:celery -A \S+ dynbeat )?"
    r"(?P<verb>hold --release|owner --\w+|[\w-]+)[^`]*)`"
)


def local_time(at: datetime, zone: ZoneInfo, *, fraction: bool = False) -> str:
    """Return ``Mon 23 Nov 2026 09:00:00 +09`` as text, with milliseconds on request."""
    local = at.astimezone(zone)
    part = f".{local.microsecond // 1000:03}" if fraction else ""
    offset = local.strftime("%z")
    shown = offset[:3] if offset.endswith("00") else f"{offset[:3]}:{offset[3:]}"
    return f"{local:%a} {local.day} {local:%b %Y %H:%M:%S}{part} {shown}"


def exact_time(at: datetime | None, zone: ZoneInfo, *, fraction: bool = False) -> str:
    """Return an instant in the zone, with the time in UTC on hover."""
    if at is None:
        return NOTHING
    return _time(
        at, text=local_time(at, zone, fraction=fraction), title=local_time(at, ZoneInfo("UTC"))
    )


def coming_time(at: datetime, zone: ZoneInfo) -> str:
    """Return an instant of these months, without the year, with the time in UTC on hover."""
    year = f" {at.astimezone(zone):%Y} "
    return _time(
        at, text=local_time(at, zone).replace(year, " ", 1), title=local_time(at, ZoneInfo("UTC"))
    )


def day_of(at: datetime, zone: ZoneInfo) -> str:
    """Return the date of an instant as text."""
    local = at.astimezone(zone)
    return f"{local:%a} {local.day} {local:%b %Y}"


def clock_time(at: datetime, zone: ZoneInfo) -> str:
    """Return an instant without its date, with the time in UTC on hover."""
    text = local_time(at, zone).removeprefix(f"{day_of(at, zone)} ")
    return _time(at, text=text, title=local_time(at, ZoneInfo("UTC")))


def _named_time(at: datetime, zone: ZoneInfo) -> str:
    return f"{local_time(at, zone)} ({zone.key})"


def relative_time(at: datetime | None, zone: ZoneInfo, *, now: datetime) -> str:
    """Return ``in 5 min`` or ``5 min ago``, with the time in the zone on hover."""
    if at is None:
        return NOTHING
    # page.js then counts in whole seconds.
    seconds = timedelta(seconds=round((at - now).total_seconds()))
    text = format_distance(now + seconds, now=now)
    return _time(at, text=text, title=_named_time(at, zone), relative=True)


def next_time(at: datetime | None, zone: ZoneInfo, *, now: datetime) -> str:
    """Return when a schedule runs next. A time that passed reads ``overdue 42 s``."""
    if at is None or at > now:
        return relative_time(at, zone, now=now)
    late = f"overdue {format_duration(now - at)}"
    return _time(at, text=late, title=_named_time(at, zone), css="db-overdue")


def duration(value: timedelta | None) -> str:
    """Return a duration in one unit."""
    return NOTHING if value is None else show(format_duration(value))


def lines(text: str) -> str:
    """Return a text of several lines for ``<pre>``."""
    return "\n".join(map(show, text.splitlines()))


def as_json(value: object) -> str:
    """Return a value of JSON on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def held_text(hold: HoldInfo) -> str:
    """Return what a hold that ``holds()`` returned holds, in words."""
    schedules, runs = str(hold.schedules), str(hold.waiting_runs)
    return (
        f"{schedules} schedule{'' if schedules == '1' else 's'} and"
        f" {runs} waiting run{'' if runs == '1' else 's'}"
    )


def chip(state: str) -> str:
    """Return the state of a schedule, run or node as a chip with a colour, a shape and a word."""
    return f'<span class="db-chip db-chip-{show(state)}">{show(state.replace("_", " "))}</span>'


def _time(at: datetime, *, text: str, title: str, relative: bool = False, css: str = "") -> str:
    attributes = f' class="{css}"' if css else ""
    attributes += " data-relative" if relative else ""
    return (
        f'<time datetime="{at.isoformat()}" title="{show(title)}"{attributes}>{show(text)}</time>'
    )


def hint_html(text: str) -> str:
    """Return a hint, with names of buttons and pages in place of the commands that they replace.

    Other commands, such as the start of a beat, stay as code.
    """
    parts, at = [], 0
    for match in _COMMAND.finditer(text):
        before = text[at : match.start()]
        parts.append(show(before))
        named = _IN_THE_PAGES.get(match["verb"])
        is_first = (not before.strip() and at == 0) or before.endswith(". ")
        if named is None:
            parts.append(f"<code>{show(match['code'])}</code>")
        else:
            parts.append(named[0].upper() + named[1:] if is_first else named)
        at = match.end()
    return "".join([*parts, show(text[at:])])
