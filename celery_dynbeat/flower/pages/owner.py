"""The page of one owner: its schedules, usage, limits, holds, alerts and changes."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule_parts import changed_fields
from celery_dynbeat.flower.pages.schedules import schedule_rows
from celery_dynbeat.insights.statistics.owner_usage import OwnerUsage, owner_usage

#: Rows of each list. Each list has a link to all of them, or says how many it shows.
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
        """Render the page, also for an owner without schedules: it may have had some."""
        mine = self.for_owner(self.owner)
        page, total, holds, alerts, changes, (now, usage, zone) = await asyncio.gather(
            self.call(partial(mine.list, limit=SCHEDULES)),
            self.call(mine.count),
            self.call(mine.holds),
            self.call(partial(mine.alerts, limit=ALERTS)),
            self.call(partial(mine.changes, limit=CHANGES)),
            self.call(self._usage),
        )
        settings = self.dynbeat.context.settings
        await self.render_page(
            "owner.html",
            owner=self.owner,
            rows=await self.call(partial(schedule_rows, self, page, now=now)),
            total=total,
            owner_zone=zone,
            holds=holds,
            own_holds=[hold for hold in holds if hold.owner is not None],
            alerts=alerts,
            changes=changes,
            fields_of=partial(changed_fields, hides_arguments=self.hides_arguments),
            usage=usage,
            limits=list(_limits(settings, self.owner)),
            quota=settings.max_schedules_per_owner if self.owner else None,
            now=now,
            local=self.zone.of(zone),
        )

    def _usage(self) -> tuple[datetime, OwnerUsage, str]:
        context = self.dynbeat.context
        now = context.clock.now()
        usage = owner_usage(context, owner=self.owner, since=now - USAGE_SPAN, until=now)
        return now, usage, self.for_owner(self.owner).timezone()


def _limits(settings: Settings, owner: str) -> Iterator[tuple[str, str, str]]:
    """Yield the labels, the values and the names of the settings that limit the owner."""
    interval = format_duration(settings.min_interval)
    yield "Shortest interval", interval, "dynbeat_min_interval"
    if owner:
        quota, tasks = settings.max_schedules_per_owner, settings.allowed_tasks
        shown = "no limit" if quota is None else f"{quota:,}"
        yield "Schedules", shown, "dynbeat_max_schedules_per_owner"
        shown = "all" if tasks is None else ", ".join(tasks) or "none"
        yield "Tasks", shown, "dynbeat_allowed_tasks"
    yield "Arguments", f"{settings.max_payload_bytes:,} bytes", "dynbeat_max_payload_bytes"
