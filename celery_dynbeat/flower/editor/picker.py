"""The picker, whose few choices write the rule for people who do not know cron."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers import Cron, Every, Once, Trigger
from celery_dynbeat.triggers.zones import load_zone

CHOICES = (
    ("every", "Every"),
    ("daily", "Daily"),
    ("weekly", "Weekly"),
    ("monthly", "Monthly"),
    ("once", "Once"),
)
UNITS = ("minutes", "hours", "days")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WORKDAYS = WEEKDAYS[:5]
#: The days of a month, and the choice for its last day.
MONTH_DAYS = (*map(str, range(1, 32)), "L")
_DURATIONS = {"minutes": "PT{}M", "hours": "PT{}H", "days": "P{}D"}
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::\d\d)?", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_EVERY = re.compile(r"P(?:(?P<days>\d+)D|T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?)", re.ASCII)
_CRON = re.compile(r"(\d+) (\d+) (\*|\d+|L) \* (\*|[a-z,-]+)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The texts of the picker. If ``choice`` is "", the person writes the rule."""

    choice: str = ""
    count: str = "5"
    unit: str = "minutes"
    time: str = "09:00"
    days: Sequence[str] = WORKDAYS
    month_day: str = "1"
    at: str = ""
    zone: str = ""

    @property
    def needed(self) -> str:
        """The text that the choice needs and that has no default, or else the choice."""
        return self.at if self.choice == "once" else self.choice


def rule_of(picked: Picked) -> str:
    """Return the text of the rule. Raises ValueError with the rule that is broken."""
    zone = f"TZ={load_zone(picked.zone.strip()).key} " if picked.zone.strip() else ""
    if picked.choice == "every":
        # Hours and minutes follow no clock.
        return f"{zone if picked.unit == 'days' else ''}{_every(picked)}"
    if picked.choice == "once":
        return f"{zone}{_once(picked.at)}"
    if picked.choice in _CRONS:
        hour, minute = _time(picked.time)
        return f"{zone and f'CRON_{zone}'}{minute} {hour} {_CRONS[picked.choice](picked)}"
    raise ValueError("choose how often the schedule fires")


def picked_of(trigger: Trigger | None, *, owner_zone: ZoneInfo) -> Picked:
    """Return the choices that write this rule; without a choice if there are none."""
    if isinstance(trigger, Once) and trigger.delay is None:
        at = trigger.at.astimezone(owner_zone).replace(tzinfo=None)
        fits = at == at.replace(second=0, microsecond=0) and not at.fold
        return Picked(choice="once", at=at.isoformat()[:16]) if fits else Picked()
    picked = Picked()
    if isinstance(trigger, Every) and (match := _EVERY.fullmatch(trigger.spec)):
        picked = _picked_of_interval(**match.groupdict("0"))
    elif isinstance(trigger, Cron) and (match := _CRON.fullmatch(trigger.spec)):
        picked = _picked_of_cron(*match.groups())
    return replace(picked, zone=(trigger and trigger.timezone) or "")


def _picked_of_interval(days: str, hours: str, minutes: str) -> Picked:
    if int(days):
        return Picked(choice="every", count=days, unit="days")
    if not int(minutes):
        return Picked(choice="every", count=hours, unit="hours")
    return Picked(choice="every", count=str(60 * int(hours) + int(minutes)), unit="minutes")


def _picked_of_cron(minute: str, hour: str, month_day: str, weekdays: str) -> Picked:
    time = f"{int(hour):02}:{int(minute):02}"
    if not _TIME.fullmatch(time):
        return Picked()
    if weekdays == "*":
        if month_day == "*":
            return Picked(choice="daily", time=time)
        # A stored rule has lower-case letters.
        return Picked(choice="monthly", time=time, month_day=month_day.upper())
    days = WORKDAYS if weekdays.lower() == "mon-fri" else tuple(weekdays.lower().split(","))
    if month_day != "*" or not set(days) <= set(WEEKDAYS):
        return Picked()
    return Picked(choice="weekly", time=time, days=days)


def picked_from(values: Mapping[str, Sequence[str]]) -> Picked:
    """Return the texts of a form: each name with its values."""

    def one(name: str, default: str) -> str:
        given = values.get(name, ())
        return given[-1] if given else default

    return Picked(
        choice=one("pick", ""),
        count=one("pick_count", ""),
        unit=one("pick_unit", "minutes"),
        time=one("pick_time", ""),
        days=values.get("pick_day", ()),
        month_day=one("pick_month_day", "1"),
        at=one("pick_at", ""),
        zone=one("pick_zone", ""),
    )


def _every(picked: Picked) -> str:
    if not _COUNT.fullmatch(picked.count.strip()) or picked.unit not in UNITS:
        raise ValueError(f"{shorten(picked.count)}: write a whole number of at least 1")
    return _DURATIONS[picked.unit].format(picked.count.strip())


def _once(text: str) -> str:
    try:
        return datetime.fromisoformat(text).isoformat(timespec="minutes")
    except ValueError:
        raise ValueError(f"{shorten(text)}: choose a day and a time") from None


def _time(text: str) -> tuple[int, int]:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{shorten(text)}: write a time such as 09:00")
    return int(match[1]), int(match[2])


def _weekly(picked: Picked) -> str:
    days = [day for day in WEEKDAYS if day in picked.days]
    if not days:
        raise ValueError("choose at least one day of the week")
    return f"* * {'mon-fri' if tuple(days) == WORKDAYS else ','.join(days)}"


def _monthly(picked: Picked) -> str:
    if picked.month_day not in MONTH_DAYS:
        raise ValueError(f"{shorten(picked.month_day)}: choose a day of the month")
    return f"{picked.month_day} * *"


_CRONS = {"daily": lambda _: "* * *", "weekly": _weekly, "monthly": _monthly}
