"""Write the messages with the notices to owners.

    alerts of an owner with a notice to send --1 transaction--> a message --> ``sending``

The target of the message is a hash of the owner, so that an owner gets no other message for
``dynbeat_alert_interval``, as each target. If the notices of an owner must wait, they are postponed
in their rows, so that the index begins with the notices of other owners.

While MAX_BACKLOG messages wait to be sent, or MAX_UNFINISHED messages to owners are tried again, no
more are written. ``sending`` delivers the messages to operators first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.alerts.content import instant
from celery_dynbeat.alerts.notice_content import Notice, NoticeContent
from celery_dynbeat.common.alert_kinds import AlertKind, NoticeKind, notice_target
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning.alerting import end_of_wait
from celery_dynbeat.planning.owner_notices import Decision, NoticeState, after_notice, decide
from celery_dynbeat.store import owners
from celery_dynbeat.store.alerts import alerts, messages, owner_notices
from celery_dynbeat.store.alerts.owner_notices import NoticeKey

#: Messages that may wait to be sent.
MAX_BACKLOG = 50
#: Messages to owners that are not ended. Many more than MAX_BACKLOG: a message that is refused is
#: tried for ``dynbeat_alert_retry_for``, and must not delay the notices of other owners.
MAX_UNFINISHED = 1_000


@dataclass(slots=True)
class NoticeWriter:
    """Writes the messages to owners. ``after`` is where the next pass continues."""

    database: Database
    settings: Settings
    after: NoticeKey | None = None

    def write_due(self, now: datetime) -> datetime | None:
        """Write the messages that are due; return when others are."""
        due_at = self.database.read_in_transaction(owner_notices.next_due)
        if due_at is None or due_at > now:
            return due_at
        room = self.database.read(partial(_room, now=now))
        for owner in self._next_owners(now, limit=room) if room else ():
            self._write_one(owner, now)
        return self.database.read_in_transaction(owner_notices.next_due)

    def _next_owners(self, now: datetime, *, limit: int) -> Iterable[str]:
        """Return up to ``limit`` owners whose notices are due, after the owners of the last pass.

        Alerts that a caller keeps locked stay due: without ``after`` they would be all that is
        read.
        """
        due = partial(owner_notices.due, now=now, after=self.after)
        window = self.database.read_in_transaction(due)
        owners: dict[str, None] = {}
        for row in window.rows:
            if row.owner not in owners and len(owners) == limit:
                return owners
            owners[row.owner] = None
            self.after = (row.owner_notice_at, row.id)
        if not window.is_full:
            self.after = None
        return owners

    def _write_one(self, owner: str, now: datetime) -> None:
        self.database.run_after_conflicts(partial(self._write, owner=owner, now=now))

    def _write(self, session: Session, *, owner: str, now: datetime) -> None:
        target = notice_target(owner)
        newest = messages.lock_newest(session, target=target)
        if newest is not None:
            due_at = end_of_wait(newest.at, self.settings.alert_interval, now=now)
            if due_at > now:
                owner_notices.postpone(session, owner=owner, until=due_at, now=now)
                return
        previous_id = 0 if newest is None else newest.id
        # This comes before the alerts are locked. Otherwise, two beats could each lock a part of
        # them.
        message = messages.insert(session, target=target, previous_id=previous_id, at=now)
        notices = self._take(session, owner=owner, now=now)
        if not notices:
            session.delete(message)
            return
        content = NoticeContent(notices=notices)
        message.severity, message.payload = content.severity, content.to_json()

    def _take(self, session: Session, *, owner: str, now: datetime) -> Sequence[Notice]:
        """Return the notices that the owner gets now, and write their next states."""
        locked = owner_notices.lock_waiting(session, owner=owner, now=now)
        schedules = owner_notices.schedules_of(session, [row.schedule_id for row in locked])
        now_owned = {key: schedule.owner for key, schedule in schedules.items()}
        moved = alerts.follow_owners(session, locked, now_owned)
        # Another owner must not read about their schedule.
        locked = [row for row in locked if row.id not in moved]
        taken = {row.id for row in locked}
        ids = sorted({row.schedule_id for row in locked})
        by_schedule: defaultdict[int, list[NoticeState]] = defaultdict(list)
        for row in owner_notices.others_of(session, schedule_ids=ids):
            by_schedule[row.schedule_id].append(_state(row))
        zone = owners.timezone_of(session, owner=owner) or self.settings.timezone
        found: list[tuple[int, Decision]] = []
        changes = []
        # The oldest alert first.
        for schedule_id in dict.fromkeys(row.schedule_id for row in locked):
            states = by_schedule[schedule_id]
            decision = decide(states, now=now)
            if decision is not None and schedule_id in schedules:
                found.append((schedule_id, decision))
            changes += [_change(each, states, now=now) for each in states if each.id in taken]
        alerts.update(session, changes)
        return [
            self._notice(schedules[schedule_id], decision, zone=zone)
            for schedule_id, decision in found
        ]

    def _notice(self, schedule: Any, decision: Decision, *, zone: str) -> Notice:
        failures = None
        if decision.kind is NoticeKind.PAUSED:
            failures = schedule.pause_after_failures or self.settings.pause_after_failures
        return Notice(
            owner=schedule.owner,
            schedule=schedule.name,
            kind=decision.kind,
            since=instant(decision.since) or "",
            until=instant(decision.until),
            next_run=instant(schedule.next_run_at),
            time_zone=zone,
            failures=failures,
        )


def _room(session: Session, *, now: datetime) -> int:
    """Return the number of messages that may be written now."""
    due = messages.count_due(session, now=now, limit=MAX_BACKLOG)
    unfinished = messages.count_unfinished_notices(session, limit=MAX_UNFINISHED)
    return max(0, min(MAX_BACKLOG - due, MAX_UNFINISHED - unfinished))


def _state(row: Row) -> NoticeState:
    return NoticeState(
        id=row.id,
        kind=AlertKind(row.kind),
        opened_at=row.opened_at,
        recovered_at=row.recovered_at,
        notice=row.owner_notice,
        notice_at=row.owner_notice_at,
    )


def _change(
    state: NoticeState, states: Sequence[NoticeState], *, now: datetime
) -> Mapping[str, Any]:
    notice, at = after_notice(state, states, now=now)
    return {"id": state.id, "owner_notice": notice, "owner_notice_at": at}
