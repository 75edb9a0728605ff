"""The alert rules that the page of one schedule shows. PURE."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta

from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.alert_rules import AlertRules
from celery_dynbeat.common.durations import format_duration
from celery_dynbeat.common.ping_urls import masked
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.flower.pages.schedule_parts import Policy


def alert_rules(info: ScheduleInfo, settings: Settings) -> Sequence[Policy]:
    """Return the rules that apply, and the host of the ping URL.

    Without own rules there are none while alerts are off.
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
