"""The page of one owner: its schedules, usage, limits, holds, alerts and changes."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from celery_dynbeat.api import OwnerSchedules, Usage
from celery_dynbeat.api.edit.limits import allowed_tasks_of, min_interval_of
from celery_dynbeat.api.usage import usage_of
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule_parts import changed_fields
from celery_dynbeat.flower.pages.schedules import schedule_rows
from celery_dynbeat.insights.statistics.owner_usage import OwnerUsage, owner_usage

#: The maximum number of rows of each list. Each list has a link to all of them, or says how many it
#: shows.
SCHEDULES = 25
CHANGES = 10
ALERTS = 10
USAGE_SPAN = timedelta(hours=24)


class OwnerPage(PageHandler):
    """The owner of ``?owner=``. "" is the application itself."""

    tab = "schedules"
    route = "dynbeat_owner"
    arguments = frozenset({"owner"})

    @property
    def owner(self) -> str:
        """The owner of the URL."""
        return self.argument("owner")

    async def get(self) -> None:
        """Render the page, even for an owner without schedules, who may have had some."""
        mine = self.for_owner(self.owner)
        page, total, holds, alerts, changes, figures = await asyncio.gather(
            self.call(partial(mine.list, limit=SCHEDULES)),
            self.call(mine.count),
            self.call(mine.holds),
            self.call(partial(mine.alerts, limit=ALERTS)),
            self.call(partial(mine.changes, limit=CHANGES)),
            self.call(self._usage),
        )
        now = figures.now
        await self.render_page(
            "owner.html",
            owner=self.owner,
            rows=await self.call(partial(schedule_rows, self, page, now=now)),
            total=total,
            owner_zone=figures.zone,
            quiet_hours=figures.quiet_hours,
            holds=holds,
            own_hold=next((hold for hold in holds if hold.owner is not None), None),
            alerts=alerts,
            changes=changes,
            fields_of=partial(changed_fields, hides_arguments=self.hides_arguments),
            usage=figures.usage,
            limits=figures.limits,
            quota=figures.quota,
            now=now,
            local=self.zone.of(figures.zone),
        )

    def _usage(self) -> "_OwnerFigures":
        context = self.dynbeat.context
        now = context.clock.now()
        usage = owner_usage(context, owner=self.owner, since=now - USAGE_SPAN, until=now)
        # A function of dynbeat_owner_limits that fails must not hide the page.
        settings = context.settings.for_pass()
        used = usage_of(context, None, self.owner, settings=settings)
        return _OwnerFigures(
            now=now,
            usage=usage,
            zone=self.for_owner(self.owner).timezone(),
            quiet_hours=quiet_hours_of(self.for_owner(self.owner)),
            quota=used.limits[0].limit if used.limits else None,
            limits=list(_limits(settings, self.owner, used)),
        )


def quiet_hours_of(mine: OwnerSchedules) -> Sequence[str]:
    """Return texts about the quiet hours of the owner, or the text of the error."""
    try:
        found = mine.quiet_hours()
        zone = mine.timezone()
    except InvalidScheduleError as error:
        # SQL by hand. The other parts of the page can be shown.
        return [str(error)]
    texts = []
    for each in found:
        whose = " (everybody)" if each.owner is None else ""
        texts.append(f"{each} on the clock of {zone}{whose}")
    return texts


class _OwnerFigures(NamedTuple):
    """The numbers of the page, and the limits of the owner: label, value and setting of each."""

    now: datetime
    usage: OwnerUsage
    zone: str
    quiet_hours: Sequence[str]
    quota: int | None
    limits: Sequence[tuple[str, str, str]]


def _limits(settings: Settings, owner: str, used: Usage) -> Iterator[tuple[str, str, str]]:
    """Yield the labels, the values and the names of the settings that limit the owner."""
    interval = min_interval_of(settings, owner)
    shown = format_duration(interval.value)
    yield "Shortest interval", shown, interval.setting
    if owner:
        for each in used.limits:
            yield "Schedules", f"{each.used:,} of {each.limit:,}", each.setting
        if not used.limits:
            yield "Schedules", "no limit", "dynbeat_max_schedules_per_owner"
        for each in used.run_limits:
            key = "" if used.running_key == owner else f" with the key {used.running_key}"
            yield "Running", f"{each.used:,} of {each.limit:,}{key}", each.setting
        if used.run_limits:
            yield "Waiting for a place", f"{used.waiting:,}", ""
        allowed = allowed_tasks_of(settings, owner)
        if allowed is None:
            yield "Tasks", "all", "dynbeat_allowed_tasks"
        else:
            yield "Tasks", ", ".join(allowed.value) or "none", allowed.setting
    yield "Arguments", f"{settings.max_payload_bytes:,} bytes", "dynbeat_max_payload_bytes"
