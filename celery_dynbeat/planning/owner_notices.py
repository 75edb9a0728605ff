"""Decide which notices an owner gets about its schedules. These are pure functions.

    alert opens     --opened-->     OPENED, due after dynbeat_alert_delay
    alert recovers  --recovered-->  RECOVERED, due when it has lasted, if the opening was reported
    alert continues --opened-->     REPORTED, if a notice has reported that it opened
    alerts of a schedule that are due  --decide-->  one notice or none, and their next states

A streak of failures causes one notice, although it may have two alerts: ``failed`` and ``lost``.
The schedule works again when the last of its alerts has recovered. What people do to an alert, such
as a snooze, does not change the notices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from celery_dynbeat.common.alert_kinds import (
    NOTICE_KINDS,
    AlertKind,
    NoticeKind,
    OwnerNotice,
)
from celery_dynbeat.planning.alerting import ENDED_BY_PEOPLE, AlertState

#: The most important kind first.
_BY_IMPORTANCE = (NoticeKind.CANNOT_RUN, NoticeKind.PAUSED, NoticeKind.FAILING)


def opened(
    before: AlertState | None, after: AlertState, *, kind: AlertKind, due_at: datetime
) -> AlertState:
    """Return an alert after its facts, with its notice. ``before`` is None for a new alert."""
    if kind not in NOTICE_KINDS:
        return after
    if before is not None and before.recovered_at is None:
        return _with(after, before.owner_notice, before.owner_notice_at)
    if before is not None and before.owner_notice == OwnerNotice.OPENED:
        return _with(after, before.owner_notice, before.owner_notice_at)
    if before is not None and kind not in ENDED_BY_PEOPLE:
        # The owner was never notified that the schedule had recovered.
        is_unknown = before.owner_notice == OwnerNotice.RECOVERED
        # The alert continues. Otherwise, a schedule that flaps would cause one notice after
        # another.
        continues = after.opened_at == before.opened_at
        if is_unknown or (continues and before.owner_notice == OwnerNotice.REPORTED):
            return _with(after, OwnerNotice.REPORTED, None)
    return _with(after, OwnerNotice.OPENED, due_at)


def recovered(
    state: AlertState, *, due_at: datetime, reports: bool, rule_applies: bool
) -> AlertState:
    """Return a recovered alert with its notice.

    ``reports`` is true if the rules of the alert require a message about its recovery. An opening
    that waits for its notice is always reported. If ``rule_applies`` is false, no notice reports
    the alert.
    """
    if not rule_applies:
        return _with(state, None, None)
    if state.owner_notice == OwnerNotice.REPORTED and reports:
        return _with(state, OwnerNotice.RECOVERED, due_at)
    return state


def _with(state: AlertState, notice: str | None, at: datetime | None) -> AlertState:
    if (state.owner_notice, state.owner_notice_at) == (notice, at):
        return state
    return replace(state, owner_notice=notice, owner_notice_at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeState:
    """An alert of a schedule, for the decision. ``recovered_at`` is None while it is open."""

    id: int
    kind: AlertKind
    opened_at: datetime
    recovered_at: datetime | None
    notice: str | None
    notice_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One notice about a schedule. ``until`` is when the schedule recovered, or None."""

    kind: NoticeKind
    since: datetime
    until: datetime | None = None


def decide(alerts: Sequence[NoticeState], *, now: datetime) -> Decision | None:
    """Return the notice about the alerts of one schedule, or None if there is nothing to report.

    A recovery that has not yet lasted long enough is not reported.
    """
    openings = [each for each in alerts if each.notice == OwnerNotice.OPENED]
    known = [each for each in alerts if each.notice is not None]
    is_open = any(each.recovered_at is None for each in known)
    reported = {
        NOTICE_KINDS[each.kind]
        for each in alerts
        if (each.notice == OwnerNotice.REPORTED and each.recovered_at is None) or _waits(each, now)
    }
    new = [each for each in openings if NOTICE_KINDS[each.kind] not in reported]
    lasting = [each for each in new if each.recovered_at is None]
    if lasting:
        return _opening(lasting)
    if is_open:
        return None
    if new:
        kind = _opening(new).kind
        ends = [each.recovered_at for each in new if each.recovered_at is not None]
        return Decision(kind=kind, since=min(each.opened_at for each in new), until=max(ends))
    ended = [each for each in alerts if each.notice == OwnerNotice.RECOVERED]
    if not ended or any(_waits(each, now) for each in ended):
        return None
    since = max(each.recovered_at or now for each in ended)
    failed = any(NOTICE_KINDS[each.kind] is NoticeKind.FAILING for each in ended)
    return Decision(
        kind=NoticeKind.WORKS_AGAIN if failed else NoticeKind.CAN_RUN_AGAIN, since=since
    )


def _waits(alert: NoticeState, now: datetime) -> bool:
    is_later = alert.notice_at is not None and alert.notice_at > now
    return alert.notice == OwnerNotice.RECOVERED and is_later


def _opening(alerts: Sequence[NoticeState]) -> Decision:
    kinds = {NOTICE_KINDS[each.kind] for each in alerts}
    kind = next(each for each in _BY_IMPORTANCE if each in kinds)
    of_kind = [each.opened_at for each in alerts if NOTICE_KINDS[each.kind] is kind]
    return Decision(kind=kind, since=min(of_kind))


def after_notice(
    alert: NoticeState, alerts: Sequence[NoticeState], *, now: datetime
) -> tuple[OwnerNotice | None, datetime | None]:
    """Return the state of an alert's notice, and its instant, after a decision about ``alerts``.

    ``alerts`` are the alerts of its schedule.
    """
    if alert.notice == OwnerNotice.OPENED:
        return OwnerNotice.REPORTED, None
    # A recovery waits for the last recovery, because together they decide what the notice says.
    waiting = [each.notice_at for each in alerts if _waits(each, now)]
    later = max((at for at in waiting if at is not None), default=None)
    if alert.notice == OwnerNotice.RECOVERED and later is not None:
        return OwnerNotice.RECOVERED, later
    return None, None
