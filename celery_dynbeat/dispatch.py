"""One pass of beat. Any number of beats may make passes at once.

    connect -> agenda -> claim, plan, record (1 transaction) -> publish -> confirm (1 UPDATE)
                      -> sweep: take what is overdue (1 transaction) -> publish -> confirm

A crash leaves, by where it strikes:

- before the commit: nothing; the next pass of any beat claims the same rows.
- the commit's answer is lost: nothing or everything; the unique key on (schedule, fire time)
  makes a repeat harmless.
- after the commit, before or during the publish: ``pending`` runs; the sweep publishes them.
- after the publish, before the confirm: ``pending`` runs whose messages are out; the sweep
  publishes them again, and the guard in the worker lets one of two messages start.

The broker comes first: without one nothing is claimed, and what passes meanwhile is a misfire,
about which the schedule's catch_up decides.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.claim import claim, plan_unplanned
from celery_dynbeat.clock import Clock
from celery_dynbeat.db.engine import Database
from celery_dynbeat.errors import DispatchError
from celery_dynbeat.events import Event
from celery_dynbeat.publish import Outgoing, Published
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import agenda, runs, schedules
from celery_dynbeat.sweep import take_overdue

logger = logging.getLogger(__name__)

#: When all that is due is in the hands of other beats, look again after this.
ELSEWHERE_PAUSE = timedelta(milliseconds=50)
NOW = timedelta(0)


class Outlet(Protocol):
    """Where runs leave: the Publisher, or what takes its place in a test."""

    def connect(self) -> None:
        """Be ready to publish, or raise."""

    def publish(self, batch: Sequence[Outgoing]) -> Published:
        """Hand ``batch`` over and tell what was taken; raise when nothing can be."""


def _nothing(point: str) -> None:
    del point


class Dispatcher:
    """Makes passes. ``reached`` is called with the name of each point at which a crash matters."""

    def __init__(
        self,
        *,
        database: Database,
        publisher: Outlet,
        clock: Clock,
        settings: Settings,
        reached: Callable[[str], None] = _nothing,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._reached = reached

    def run_pass(self) -> timedelta:
        """Send a batch of what is due and return how long beat may sleep.

        Raises the database's or the broker's error when one of them is away; then nothing is lost,
        and the next pass goes on where this one broke off.
        """
        self._publisher.connect()
        now = self._clock.now()
        todo = self._database.read(agenda.read)
        moved = self._plan_new(now) if todo.unplanned else 0
        if _is_due(todo.next_run_at, now):
            moved += self._dispatch_due(now)
        if _is_due(todo.overdue_at, now):
            moved += self._republish_overdue(now)
        if moved:
            return NOW
        return self._pause(todo.earliest(), now)

    def _pause(self, earliest: datetime | None, now: datetime) -> timedelta:
        if earliest is None:
            return self._settings.poll_interval
        if earliest <= now:
            return ELSEWHERE_PAUSE
        return min(earliest - now, self._settings.poll_interval)

    def _plan_new(self, now: datetime) -> int:
        return self._database.run(
            lambda session: plan_unplanned(session, now=now, settings=self._settings),
        )

    def _dispatch_due(self, now: datetime) -> int:
        def work(session: Session) -> tuple[int, list[Outgoing]]:
            claimed = claim(session, now=now, settings=self._settings)
            self._reached("recorded")
            return claimed.rows, claimed.outgoing

        rows, outgoing = self._database.run(work)
        self._reached("committed")
        self._send(outgoing, Event.RUNS_DISPATCHED)
        return rows

    def _republish_overdue(self, now: datetime) -> int:
        taken, overdue = self._database.run(
            lambda session: take_overdue(session, now=now, settings=self._settings),
        )
        self._reached("swept")
        self._send(overdue, Event.RUNS_REPUBLISHED)
        return taken

    def _send(self, outgoing: Sequence[Outgoing], event: Event) -> None:
        if not outgoing:
            return
        published = self._publisher.publish(outgoing)
        self._reached("published")
        self._database.run(lambda session: self._confirm(session, outgoing, published))
        logger.info(
            "%s %s of %s",
            event.replace("_", " "),
            len(published.sent),
            len(outgoing),
            extra={"event": event, "sent": len(published.sent), "claimed": len(outgoing)},
        )
        for run in outgoing:
            logger.debug("sent run %s of %r (%s)", run.run_id, run.name, run.task)

    def _confirm(
        self,
        session: Session,
        outgoing: Sequence[Outgoing],
        published: Published,
    ) -> None:
        now = self._clock.now()
        sent = set(published.sent)
        by_deadline: defaultdict[datetime, list[str]] = defaultdict(list)
        for run in outgoing:
            if run.run_id in sent:
                by_deadline[self._look_again_at(run, now)].append(run.run_id)
        for overdue_at, ids in by_deadline.items():
            runs.mark_sent(session, ids, now=now, overdue_at=overdue_at)
        for run in outgoing:
            if run.run_id in published.refused:
                self._give_up(session, run, published.refused[run.run_id], now)

    def _look_again_at(self, run: Outgoing, now: datetime) -> datetime:
        resend_at = now + self._settings.resend_after
        if run.expires_at is None:
            return resend_at
        # Soon after its expiry: the broker may have dropped the message without a word.
        return min(resend_at, run.expires_at + self._settings.dispatch_timeout)

    def _give_up(
        self,
        session: Session,
        run: Outgoing,
        error: DispatchError,
        now: datetime,
    ) -> None:
        logger.error(
            "%s; schedule %r of owner %r is set aside",
            error,
            run.name,
            run.owner,
            extra={"event": Event.RUN_UNPUBLISHABLE, "run_id": run.run_id},
        )
        runs.mark_unpublishable(session, run_id=run.run_id, now=now, error=str(error))
        schedules.set_aside(
            session,
            schedule_id=run.schedule_id,
            version=run.version,
            error=f"{type(error).__name__}: {error}",
        )


def _is_due(instant: datetime | None, now: datetime) -> bool:
    return instant is not None and instant <= now
