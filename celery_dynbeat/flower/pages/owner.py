"""The page of one owner: its schedules, usage, limits, holds, alerts and changes."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from celery_dynbeat.api.limits import min_interval_of, usage_of
from celery_dynbeat.api.results import Usage
from celery_dynbeat.common.owner_limits import setting_of
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule import changed_fields, quiet_hours_of
from celery_dynbeat.flower.pages.schedules import schedule_rows
from celery_dynbeat.insights.history import owner_usage

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
        await self.render_page(
            "owner.html",
            owner=self.owner,
            rows=await self.call(partial(schedule_rows, self, page, now=figures["now"])),
            total=total,
            holds=holds,
            own_hold=next((hold for hold in holds if hold.owner is not None), None),
            alerts=alerts,
            changes=changes,
            fields_of=partial(changed_fields, hides_arguments=self.hides_arguments),
            **figures,
        )

    def _usage(self) -> dict[str, Any]:
        context = self.dynbeat.context
        now = context.clock.now()
        usage = owner_usage(context, owner=self.owner, since=now - USAGE_SPAN, until=now)
        # A function of dynbeat_owner_limits that fails must not hide the page.
        settings = context.settings.for_pass()
        used = usage_of(context, None, self.owner, settings=settings)
        owner_zone = self.for_owner(self.owner).timezone()
        return {
            "now": now,
            "usage": usage,
            "owner_zone": owner_zone,
            "local": self.zone.of(owner_zone),
            "quiet_hours": quiet_hours_of(self.for_owner(self.owner)),
            "quota": used.max_schedules,
            # The label, the value and the setting of each.
            "limits": list(_limits(settings, self.owner, used)),
        }


def _limits(settings: Settings, owner: str, used: Usage) -> Iterator[tuple[str, str, str]]:
    """Yield the labels, the values and the names of the settings that limit the owner."""
    interval, setting = min_interval_of(settings, owner)
    yield "Shortest interval", format_duration(interval), setting
    if owner:
        most = used.max_schedules
        schedules = "no limit" if most is None else f"{used.schedules:,} of {most:,}"
        yield "Schedules", schedules, setting_of("max_schedules")
        if used.max_running is not None:
            key = "" if used.running_key == owner else f" with the key {used.running_key}"
            running = f"{used.running:,} of {used.max_running:,}{key}"
            yield "Running", running, setting_of("max_running")
            yield "Waiting for a place", f"{used.waiting:,}", ""
        allowed = settings.owner_limits.of(owner).allowed_tasks
        shown = "all" if allowed is None else ", ".join(allowed) or "none"
        yield "Tasks", shown, setting_of("allowed_tasks")
    yield "Arguments", f"{settings.max_payload_bytes:,} bytes", "dynbeat_max_payload_bytes"
