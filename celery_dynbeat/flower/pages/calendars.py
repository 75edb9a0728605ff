"""The pages of the shared calendars: a list, and one calendar with its next days."""

import asyncio
from collections.abc import Sequence
from datetime import date
from functools import partial

from celery_dynbeat.api.results import CalendarInfo
from celery_dynbeat.common.errors import NotFoundError
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedules import schedule_rows
from celery_dynbeat.insights.lists import calendar_schedules
from celery_dynbeat.triggers.zones import load_zone

#: What the page of a calendar shows.
DAYS = 12
SCHEDULES = 25


class CalendarsPage(PageHandler):
    """The calendars by name."""

    tab = "schedules"
    route = "dynbeat_calendars"
    arguments = frozenset({"size", "after", "back"})

    async def get(self) -> None:
        """Render the page."""
        place = self.place
        page, now = await asyncio.gather(
            self.call(partial(self.dynbeat.calendars.list, limit=place.size, after=place.after)),
            self.call(self.dynbeat.context.clock.now),
        )
        await self.render_page(
            "calendars.html",
            calendars=await self.call(partial(self._with_waiting, page.items)),
            paging=self.paging(page.cursor),
            now=now,
        )

    def _with_waiting(self, found: Sequence[CalendarInfo]) -> Sequence[CalendarInfo]:
        """Return the calendars. Only one that is not in force has numbers of schedules."""

        def counted(info: CalendarInfo) -> CalendarInfo:
            try:
                return self.dynbeat.calendars.get(info.name)
            except NotFoundError:
                # It was deleted after the list was read.
                return info

        return [each if each.in_force_at else counted(each) for each in found]


class CalendarPage(PageHandler):
    """The calendar of ``?name=``: its next days, and schedules that use it."""

    tab = "schedules"
    route = "dynbeat_calendar"
    arguments = frozenset({"name"})

    async def get(self) -> None:
        """Render the page. An unknown name is answered with 404."""
        name, context = self.argument("name"), self.dynbeat.context
        info, page, now = await asyncio.gather(
            self.call(partial(self.dynbeat.calendars.get, name)),
            self.call(partial(calendar_schedules, context, name=name, limit=SCHEDULES)),
            self.call(context.clock.now),
        )
        zone = load_zone(context.settings.timezone)
        await self.render_page(
            "calendar.html",
            calendar=info,
            rows=await self.call(partial(schedule_rows, self, page, now=now)),
            days=next_days(info, today=now.astimezone(zone).date()),
            days_zone=zone,
            now=now,
        )


def next_days(info: CalendarInfo, *, today: date) -> Sequence[tuple[date, str]]:
    """Return the days from ``today`` on with their notes, at most ``DAYS``."""
    return [(day, note) for day, note in info.dates.items() if day >= today][:DAYS]
