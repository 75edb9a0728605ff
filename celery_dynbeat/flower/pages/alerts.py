"""The page "Alerts": the open alerts and the last that ended, alerts of one error in one row."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from celery_dynbeat.api.filters import Key
from celery_dynbeat.api.results import AlertInfo
from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import error_cause, shorten
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.insights.lists import alert_lists

#: Rows of the table, and schedules that one row names.
MAX_ROWS, MAX_NAMED = 200, 5


@dataclass(frozen=True, slots=True)
class AlertRow:
    """The alerts of one kind, task and error; the oldest comes first."""

    alerts: Sequence[AlertInfo]

    @property
    def first(self) -> AlertInfo:
        """The alert that opened first."""
        return self.alerts[0]


class AlertsPage(PageHandler):
    """Open alerts, and those that ended in the last 24 hours."""

    tab = "alerts"
    arguments = frozenset({"kind"})
    chip_keys = (Key(name="kind"),)

    async def get(self) -> None:
        """Render the page."""
        kind = self.argument("kind")
        if kind and kind not in tuple(AlertKind):
            rule = f"must be one of {', '.join(AlertKind)}"
            raise InvalidArgumentError(f"kind = {shorten(kind)}: {rule}", field="kind")
        context = self.dynbeat.context
        found, now = await asyncio.gather(
            self.call(partial(alert_lists, context)), self.call(context.clock.now)
        )
        kinds = sorted({each.kind for each in found.open} | ({kind} if kind else set()))
        chosen = [each for each in found.open if not kind or each.kind == kind]
        await self.render_page(
            "alerts.html",
            found=found,
            rows=_rows(chosen)[:MAX_ROWS],
            recovered=_rows(found.recovered),
            total=len(chosen),
            kinds=kinds,
            max_named=MAX_NAMED,
            enabled=context.settings.alerts_enabled,
            now=now,
        )


def _rows(alerts: Iterable[AlertInfo]) -> Sequence[AlertRow]:
    groups: dict[tuple[str, ...], list[AlertInfo]] = {}
    for each in alerts:
        groups.setdefault((each.kind, each.task, error_cause(each.cause)), []).append(each)
    return [
        AlertRow(sorted(members, key=lambda each: each.opened_at)) for members in groups.values()
    ]
