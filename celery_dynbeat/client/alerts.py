"""List alerts, acknowledge and snooze them, and what their targets got.

Beat opens and ends alerts, and sends messages.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client import audit, checks
from celery_dynbeat.client.acting import current_actor
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import AlertInfo, AlertTargetInfo
from celery_dynbeat.common.actions import Action
from celery_dynbeat.common.alert_kinds import Unsent
from celery_dynbeat.common.alert_settings import urls_of
from celery_dynbeat.common.errors import AlertNotFoundError
from celery_dynbeat.db.alert_models import NO_SCHEDULE, Alert
from celery_dynbeat.planning.alerting import MAX_SNOOZE
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import alert_messages, alert_pages

#: Of ids in the database.
_MAX_ID = 2**63 - 1


def _page(
    context: Context,
    session: Session | None,
    *,
    owner: str | None,
    only_open: bool,
    after: int | None,
    limit: int,
) -> Sequence[AlertInfo]:
    check_limit("limit", limit)
    if after is not None:
        checks.check_integer("after", after, minimum=0, maximum=_MAX_ID)
    rows = context.read_many(
        session,
        lambda session: alert_pages.page(
            session, owner=owner, only_open=only_open, after=after or 0, limit=limit
        ),
    )
    return [AlertInfo.of(row) for row in rows]


def _acknowledge(
    context: Context, session: Session | None, *, owner: str | None, alert_id: int
) -> AlertInfo:
    def acknowledge(alert: Alert, now: datetime) -> Mapping[str, object]:
        alert.acknowledged_at, alert.acknowledged_by = now, current_actor().actor
        alert.snoozed_until = alert.snoozed_by = None
        alert.unsent = alert.unsent_at = None
        return {"kind": alert.kind}

    action = Action.ACKNOWLEDGE_ALERT
    return _change(context, session, acknowledge, owner=owner, alert_id=alert_id, action=action)


def _snooze(
    context: Context,
    session: Session | None,
    *,
    owner: str | None,
    alert_id: int,
    until: datetime | None,
) -> AlertInfo:
    until = checks.check_instant("until", until)

    def snooze(alert: Alert, now: datetime) -> Mapping[str, object]:
        if until is not None and not now < until <= now + MAX_SNOOZE:
            rule = f"must be later than now, {now}, by at most {MAX_SNOOZE.days} days, or None"
            raise checks.invalid("until", until, rule)
        was_snoozed = alert.snoozed_until is not None
        alert.snoozed_until = until
        if until is not None:
            alert.snoozed_by = current_actor().actor
            alert.acknowledged_at = alert.acknowledged_by = None
            alert.unsent = alert.unsent_at = None
        elif was_snoozed:
            alert.snoozed_by = None
            alert.unsent, alert.unsent_at = Unsent.OPENED.value, now
        return {"kind": alert.kind, "snoozed_until": None if until is None else until.isoformat()}

    action = Action.SNOOZE_ALERT
    return _change(context, session, snooze, owner=owner, alert_id=alert_id, action=action)


def _change(
    context: Context,
    session: Session | None,
    change: Callable[[Alert, datetime], Mapping[str, object]],
    *,
    owner: str | None,
    alert_id: int,
    action: Action,
) -> AlertInfo:
    """Change a locked open alert, and write what ``change`` returns to the audit."""
    checks.check_integer("alert_id", alert_id, minimum=1, maximum=_MAX_ID)

    def work(session: Session) -> AlertInfo:
        alert = alert_pages.lock_open(session, owner=owner, alert_id=alert_id)
        if alert is None:
            raise AlertNotFoundError(owner=owner, alert_id=alert_id)
        # After the lock, for which this transaction may have waited.
        now = context.clock.now()
        new = change(alert, now)
        session.flush()
        # None: alerts about nodes concern everything.
        whose = None if alert.schedule_id == NO_SCHEDULE else alert.owner
        edit = audit.Edit(owner=whose, name=alert.name, action=action, new=new)
        audit.record(context, session, [edit], now=now)
        return AlertInfo.of(alert_pages.get(session, alert_id=alert_id))

    return context.write(session, work)


class OwnerAlertCalls:
    """The calls of OwnerSchedules for alerts."""

    _context: Context
    owner: str

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: Session | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of the owner, in the order of their ids.

        With ``only_open=False`` also those from which the schedule has recovered. ``after`` is the
        id of the last alert of the previous call. ``limit`` is at most 1,000. Raises
        InvalidScheduleError.
        """
        return _page(
            self._context,
            session,
            owner=self.owner,
            only_open=only_open,
            after=after,
            limit=limit,
        )

    def acknowledge_alert(self, alert_id: int, *, session: Session | None = None) -> AlertInfo:
        """Note that the actor takes care of an open alert; return it.

        No message reports the alert again until it recovers. The recovery is reported. An opening
        that no message has reported yet is not, and a snooze ends. Raises AlertNotFoundError.
        """
        return _acknowledge(self._context, session, owner=self.owner, alert_id=alert_id)

    def snooze_alert(
        self, alert_id: int, *, until: datetime | None, session: Session | None = None
    ) -> AlertInfo:
        """Send no message about an open alert until an instant; return the alert.

        If it is still open then, a message reports it again. A recovery before is not reported.
        ``until`` is at most 30 days ahead. None ends the snooze. An acknowledgement ends. Raises
        AlertNotFoundError and InvalidScheduleError.
        """
        return _snooze(self._context, session, owner=self.owner, alert_id=alert_id, until=until)


class AlertCalls:
    """The calls of Schedules for alerts."""

    _context: Context

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = 100,
        after: int | None = None,
        session: Session | None = None,
    ) -> Sequence[AlertInfo]:
        """Return up to ``limit`` alerts of all owners. Otherwise as ``OwnerSchedules.alerts``."""
        return _page(
            self._context, session, owner=None, only_open=only_open, after=after, limit=limit
        )

    def acknowledge_alert(self, alert_id: int, *, session: Session | None = None) -> AlertInfo:
        """Acknowledge an alert of any owner. Otherwise as ``OwnerSchedules.acknowledge_alert``."""
        return _acknowledge(self._context, session, owner=None, alert_id=alert_id)

    def snooze_alert(
        self, alert_id: int, *, until: datetime | None, session: Session | None = None
    ) -> AlertInfo:
        """Snooze an alert of any owner. Otherwise as ``OwnerSchedules.snooze_alert``."""
        return _snooze(self._context, session, owner=None, alert_id=alert_id, until=until)

    def alert_targets(self, *, session: Session | None = None) -> Sequence[AlertTargetInfo]:
        """Return what the messages to each alert target have become, in the order of the names.

        The targets are those of the settings of this process, and others that have messages or
        unsent alerts.
        """
        urls = self._context.settings.alert_urls
        return self._context.read(session, lambda session: _targets(session, urls))


def _targets(session: Session, urls: Mapping[str, tuple[str, ...]]) -> Sequence[AlertTargetInfo]:
    counts = alert_pages.message_counts(session)
    errors = alert_pages.errors_of(
        session, [row.failed_id for row in counts.values() if row.failed_id is not None]
    )
    waiting = {each.target for each in alert_messages.waiting(session)}
    found = []
    for target in sorted({*urls, *counts, *waiting}):
        row = counts.get(target)
        unsent = alert_pages.count_unsent(session, target=target) if target in waiting else 0
        found.append(
            AlertTargetInfo(
                target=target,
                urls=len(urls_of(urls, target)),
                unsent_alerts=unsent,
                waiting=row.waiting if row else 0,
                failing=row.failing if row else 0,
                sent=row.sent if row else 0,
                dropped=row.dropped if row else 0,
                last_sent_at=row.last_sent_at if row else None,
                next_try_at=row.next_try_at if row else None,
                error=errors.get(row.failed_id) if row else None,
            )
        )
    return found
