"""The page "Alerts": open and recovered alerts, and what their targets got."""

import asyncio
from datetime import timedelta
from functools import partial

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
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
