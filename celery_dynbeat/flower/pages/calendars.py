"""The pages of the shared calendars: a list, and one calendar with its next days."""

import asyncio
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from celery_dynbeat.api import CalendarInfo
from celery_dynbeat.common.errors import CalendarNotFoundError, InvalidTriggerError
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.paging import PagePlace, paging
from celery_dynbeat.flower.pages.schedules import schedule_rows
from celery_dynbeat.insights.statistics.calendar_schedules import calendar_schedules
from celery_dynbeat.triggers.base import BudgetExceededError, SearchBudget
from celery_dynbeat.triggers.zones import day_around, load_zone

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
        place = PagePlace.of(
            after=self.argument("after"),
            back=self.get_query_arguments("back", strip=False),
            size=self.argument("size"),
        )
        page, now = await asyncio.gather(
            self.call(partial(self.dynbeat.calendars.list, limit=place.size, after=place.after)),
            self.call(self.dynbeat.context.clock.now),
        )
        await self.render_page(
            "calendars.html",
            calendars=await self.call(partial(self._with_waiting, page.items)),
            paging=paging(place, cursor=page.cursor, here=self.here),
            now=now,
        )

    def _with_waiting(self, found: Sequence[CalendarInfo]) -> Sequence[CalendarInfo]:
        """Return the calendars. Only one that is not in force has numbers of schedules."""

        def counted(info: CalendarInfo) -> CalendarInfo:
            try:
                return self.dynbeat.calendars.get(info.name)
            except CalendarNotFoundError:
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
        zone = zone_of(info, context.settings.timezone)
        await self.render_page(
            "calendar.html",
            calendar=info,
            rows=await self.call(partial(schedule_rows, self, page, now=now)),
            days=await self.call(partial(next_days, info, zone=zone, now=now)),
            days_zone=zone,
            now=now,
        )


def zone_of(info: CalendarInfo, default: str) -> ZoneInfo:
    """Return the zone in which the page shows the days."""
    zone = None if info.trigger is None else info.trigger.timezone
    try:
        return load_zone(zone or info.timezone or default)
    except InvalidTriggerError:
        # A newer tz database no longer has the zone.
        return load_zone(default)


def next_days(info: CalendarInfo, *, zone: ZoneInfo, now: datetime) -> Sequence[date]:
    """Return the days from today on, at most ``DAYS``. A costly trigger has fewer."""
    today = day_around(zone, now)
    if info.trigger is None:
        return [day for day in info.dates if day >= today.date][:DAYS]
    trigger, budget = info.trigger, SearchBudget()
    if trigger.needs_zone:
        trigger = trigger.in_zone(zone.key)
    days = list[date]()
    begin = today.start
    try:
        while len(days) < DAYS:
            at = trigger.next_within(begin - timedelta(microseconds=1), budget)
            if at is None:
                break
            day = day_around(zone, at)
            days.append(day.date)
            begin = day.end
    except BudgetExceededError:
        pass
    return days
