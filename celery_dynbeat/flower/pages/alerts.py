"""The page "Alerts", and the alert rules that the page of one schedule shows."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial

from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.alert_rules import AlertRules
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.ping_urls import masked
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import format_duration, shorten
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule_parts import Policy
from celery_dynbeat.insights.statistics.alert_lists import alert_lists

#: The choices of the form -> how long no message reports the alert.
SNOOZES = {
    "1 h": timedelta(hours=1),
    "4 h": timedelta(hours=4),
    "24 h": timedelta(hours=24),
    "7 d": timedelta(days=7),
}
#: Alerts of one form: those that the page shows.
MAX_SELECTED = 200
#: The kinds whose value is a number of seconds.
_IN_SECONDS = frozenset({AlertKind.LATE, AlertKind.SLOW, AlertKind.SILENT})


class AlertsPage(PageHandler):
    """Open alerts with who cares about them, the last recoveries, and the deliveries."""

    tab = "alerts"
    arguments = frozenset({"kind"})
    chip_filters = (Filter(name="kind"),)

    async def get(self) -> None:
        """Render the page."""
        kind = self.argument("kind")
        if kind and kind not in tuple(AlertKind):
            rule = f"must be one of {', '.join(AlertKind)}"
            raise InvalidScheduleError(f"kind = {shorten(kind)}: {rule}", field="kind")
        context = self.dynbeat.context
        found, targets, now = await asyncio.gather(
            self.call(partial(alert_lists, context)),
            self.call(self.schedules.alert_targets),
            self.call(context.clock.now),
        )
        kinds = sorted({each.kind for each in found.open} | ({kind} if kind else set()))
        chosen = [each for each in found.open if not kind or each.kind == kind]
        await self.render_page(
            "alerts.html",
            found=found,
            alerts=chosen[:MAX_SELECTED],
            total=len(chosen),
            kinds=kinds,
            targets=targets,
            enabled=context.settings.alerts_enabled,
            snoozes=list(SNOOZES),
            in_seconds=_IN_SECONDS,
            now=now,
        )


def alert_rules(info: ScheduleInfo, settings: Settings) -> Sequence[Policy]:
    """Return the rules that apply, and the host of the ping URL.

    If a schedule has no alert rules, there are none while alerts are off.
    """
    rules = _rules(info, settings) if info.alerts or settings.alerts_enabled else []
    if info.ping_url is not None:
        rules.append(Policy(name="ping_url", value=masked(info.ping_url), is_default=False))
    return rules


def _rules(info: ScheduleInfo, settings: Settings) -> list[Policy]:
    own = info.alerts or AlertRules()
    effective = own.effective(settings)
    return [
        Policy(
            name=each.name,
            value=_text(getattr(effective, each.name)),
            is_default=getattr(own, each.name) is None,
        )
        for each in fields(AlertRules)
    ]


def _text(value: object) -> str:
    if value is None:
        return "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_duration(value) if isinstance(value, timedelta) else str(value)
