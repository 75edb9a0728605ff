"""List, acknowledge and snooze alerts, and show what became of their messages.

Beat opens and ends alerts, and sends messages.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.results import AlertInfo, AlertTargetInfo, Page, cursors
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.common.alert_kinds import OWNERS, Unsent
from celery_dynbeat.common.errors import AlertNotFoundError
from celery_dynbeat.common.settings import urls_of
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import is_group
from celery_dynbeat.db.alert_models import NO_SCHEDULE, Alert
from celery_dynbeat.planning.alerting import MAX_SNOOZE
from celery_dynbeat.store.alerts import alerts, group_alerts, messages, owner_notices
from celery_dynbeat.store.group_pages import Place

#: Of ids in the database.
_MAX_ID = 2**63 - 1
#: The order of the pages, as their cursors name it.
_OLDEST = "oldest_alert"
_IN_PART, _NEXT_PART = "oldest_alert in a group", "oldest_alert in the next part of a group"
_OF_GROUP = {
    _IN_PART: (cursors.as_text, cursors.as_text, cursors.as_row_id),
    _NEXT_PART: (cursors.as_text,),
}


class AlertCalls(Calls):
    """The calls for alerts."""

    def alerts(
        self,
        *,
        only_open: bool = True,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page[AlertInfo]:
        """Return one page of up to ``limit`` alerts, in the order of their ids.

        If ``only_open`` is false, the page also contains alerts from which the schedule has
        recovered. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000. The
        alerts of a group are listed in parts: first the alerts of the first 50 owners (by name)
        that have any, then the alerts of the next 50. A page ends with its part.
        Raises InvalidScheduleError.
        """
        check_limit("limit", limit)
        if self._owner is not None and is_group(self._owner):
            return self._alerts_of_group(
                session, self._owner, only_open=only_open, limit=limit, after=after
            )
        key = cursors.decode_id(after, order=_OLDEST)
        rows = self._context.read_many(
            session,
            lambda session: alerts.page(
                session, owner=self._owner, only_open=only_open, after=key, limit=limit + 1
            ),
        )
        return page_of(
            rows, limit=limit, order=_OLDEST, info=AlertInfo.of, key=lambda info: (info.id,)
        )

    def _alerts_of_group(
        self,
        session: Session | None,
        group: str,
        *,
        only_open: bool,
        limit: int,
        after: str | None,
    ) -> Page[AlertInfo]:
        place = None
        if after is not None:
            place = Place.of(cursors.decode_one_of(after, _OF_GROUP, default=_IN_PART)[1])
        found = self._context.read_many(
            session,
            lambda session: group_alerts.page_of_group(
                session, group=group, only_open=only_open, place=place, limit=limit
            ),
        )
        items = tuple(map(AlertInfo.of, found.rows))
        if found.last is None:
            return Page(items, None)
        order = _NEXT_PART if found.last.key is None else _IN_PART
        return Page(items, cursors.encode(order, found.last.parts))

    def acknowledge_alert(
        self,
        alert_id: int,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> AlertInfo:
        """Note that the actor is taking care of an open alert, and return the alert.

        No message reports the alert again until it recovers, but its recovery is reported. If no
        message has reported the opening of the alert yet, none will. The call ends a snooze of the
        alert. Raises AlertNotFoundError.
        """

        def acknowledge(alert: Alert, now: datetime) -> Mapping[str, object]:
            alert.acknowledged_at, alert.acknowledged_by = now, current_actor().actor
            alert.snoozed_until = alert.snoozed_by = None
            alert.unsent = alert.unsent_at = None
            return {"kind": alert.kind}

        work = self._change_alert(alert_id, acknowledge, Action.ACKNOWLEDGE_ALERT)
        return self._write(session, work, actor=actor, reason=reason)

    def snooze_alert(
        self,
        alert_id: int,
        *,
        until: datetime | None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> AlertInfo:
        """Send no message about an open alert until an instant, and return the alert.

        If the alert is still open at that instant, a message reports it again. A recovery before
        that instant is not reported. ``until`` is at most 30 days ahead, and None ends the snooze.
        The call ends an acknowledgement of the alert. Raises AlertNotFoundError and
        InvalidScheduleError.
        """
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
            end = None if until is None else until.isoformat()
            return {"kind": alert.kind, "snoozed_until": end}

        work = self._change_alert(alert_id, snooze, Action.SNOOZE_ALERT)
        return self._write(session, work, actor=actor, reason=reason)

    def _change_alert(
        self,
        alert_id: int,
        change: Callable[[Alert, datetime], Mapping[str, object]],
        action: Action,
    ) -> Callable[[Session], AlertInfo]:
        """Change a locked open alert, and write what ``change`` returns to the audit."""
        checks.check_integer("alert_id", alert_id, minimum=1, maximum=_MAX_ID)

        def work(session: Session) -> AlertInfo:
            alert = alerts.lock_one(session, owner=self._owner, alert_id=alert_id)
            if alert is None:
                raise AlertNotFoundError(owner=self._owner, alert_id=alert_id)
            # After the lock, for which this transaction may have waited.
            now = self._context.clock.now()
            new = change(alert, now)
            session.flush()
            # Alerts about nodes concern everything, so they have no owner.
            whose = None if alert.schedule_id == NO_SCHEDULE else alert.owner
            edit = audit.Edit(owner=whose, name=alert.name, action=action, new=new)
            audit.record(self._context, session, [edit], now=now)
            return AlertInfo.of(alerts.get(session, alert_id=alert_id))

        return work


class AlertTargetCalls(Calls):
    """The call for the targets of alerts, which have no owner."""

    def alert_targets(self, *, session: Session | None = None) -> Sequence[AlertTargetInfo]:
        """Return the results of the messages to each alert target, ordered by name.

        The list contains the targets in the settings of this process, and other targets that have
        messages or unsent alerts. The notices to owners appear as the target ``"(owners)"``.
        """
        settings = self._context.settings
        urls, has_recipient = settings.alert_urls, settings.recipient is not None
        return self._context.read(
            session, lambda session: _targets(session, urls, has_recipient=has_recipient)
        )


def _targets(
    session: Session, urls: Mapping[str, tuple[str, ...]], *, has_recipient: bool
) -> Sequence[AlertTargetInfo]:
    counts = messages.counts(session)
    errors = messages.errors(
        session, [row.failed_id for row in counts.values() if row.failed_id is not None]
    )
    waiting = {each.target for each in messages.waiting(session)}
    found = []
    notices = {OWNERS} if has_recipient else set()
    for target in sorted({*urls, *counts, *waiting, *notices}):
        row = counts.get(target)
        unsent = messages.count_unsent(session, target=target) if target in waiting else 0
        if target == OWNERS:
            unsent = owner_notices.count_waiting(session)
        found.append(
            AlertTargetInfo(
                target=target,
                urls=0 if target == OWNERS else len(urls_of(urls, target)),
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
