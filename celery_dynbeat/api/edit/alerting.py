"""Checks of the alert rules and the ping URL of a schedule, and the row that beat checks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_dynbeat.api.checks import copy_as, invalid
from celery_dynbeat.common import ping_urls
from celery_dynbeat.common.alert_rules import AlertRules, stored_rules
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from celery_dynbeat.api.columns import ScheduleRow


def rules_column(field: str, value: Any) -> dict[str, Any] | None:
    """Return the column for the alert rules that a caller gave, or None if there is no rule.

    Raises InvalidScheduleError.
    """
    if value is None:
        return None
    if not isinstance(value, AlertRules):
        if not isinstance(value, Mapping):
            raise invalid(field, value, "must be AlertRules(...), or a dict of its arguments")
        value = AlertRules.from_json(copy_as(dict, field, value))
    return value.to_json() or None


def ping_url_column(field: str, value: Any) -> str | None:
    """Return the column for a ping URL. ``check`` compares it with the settings."""
    # No error shows a ping URL, because the URL can contain a token.
    if value is None or isinstance(value, str):
        return value
    msg = f"{field} is of type {type(value).__name__}: must be a URL, or None"
    raise InvalidScheduleError(msg, field=field)


def check(settings: Settings, values: Mapping[str, Any]) -> None:
    """Raise InvalidScheduleError if the settings do not allow the new ``values`` of columns."""
    rules, url = values.get("alerts"), values.get("ping_url")
    if rules is not None and "to" in rules:
        _check_target(settings, rules["to"])
    if url is not None:
        _check_host(settings, url)


def _check_target(settings: Settings, target: str) -> None:
    if target in settings.alert_urls:
        return
    known = ", ".join(sorted(settings.alert_urls))
    fix = f"known are {known}" if known else "it has no targets: set it, or leave 'to' out"
    msg = f"alerts: to = {target!r}: dynbeat_alert_urls has no such target; {fix}"
    raise InvalidScheduleError(msg, field="alerts")


def _check_host(settings: Settings, url: str) -> None:
    if settings.ping_hosts is None:
        msg = "ping_url: no host is allowed; list the allowed ones in dynbeat_ping_hosts"
        raise InvalidScheduleError(msg, field="ping_url")
    try:
        ping_urls.parse_ping_url(url, allowed=settings.ping_hosts)
    except ValueError as error:
        raise InvalidScheduleError(f"ping_url: {error}", field="ping_url") from None


def add_checks(
    settings: Settings, session: "Session", rows: Sequence["ScheduleRow"], *, now: datetime
) -> None:
    """Let beat check the new rows with rules that no event reports."""
    # A late import: the help of a command checks no rule, and opens no database.
    from celery_dynbeat.store.alerts import checks  # noqa: PLC0415

    keys = [(row.owner, row.name) for row in rows if _needs_checks(settings, row)]
    if keys:
        checks.add(session, keys, due_at=now)


def update_check(
    settings: Settings, session: "Session", row: "ScheduleRow", *, now: datetime
) -> None:
    """Let beat check a row whose rules changed, or stop checking it."""
    from celery_dynbeat.store.alerts import checks  # noqa: PLC0415

    if _needs_checks(settings, row):
        checks.put(session, schedule_id=row.id, due_at=now)
    else:
        checks.delete(session, [row.id])


def _needs_checks(settings: Settings, row: "ScheduleRow") -> bool:
    if not row.alerts and settings.alert_silent_after is None:
        return False
    return stored_rules(row.alerts).effective(settings).needs_checks
