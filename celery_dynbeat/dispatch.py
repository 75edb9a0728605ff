"""One pass of beat. Any number of beats may make passes at once.

    connect -> agenda -> claim, plan, record (1 transaction) -> publish -> confirm (1 UPDATE)
                      -> sweep: take what is overdue (1 transaction) -> publish -> confirm
                      -> when nothing due is left behind: a batch of a backfill, likewise

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
from functools import partial
from typing import Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.backfill import go_on
from celery_dynbeat.claim import Claimed, claim, plan_unplanned
from celery_dynbeat.clock import Clock
from celery_dynbeat.db.engine import Database
from celery_dynbeat.errors import DispatchError
from celery_dynbeat.events import Event
from celery_dynbeat.lost import take_lost
from celery_dynbeat.pausing import pause_if_failing
from celery_dynbeat.publish import Outgoing, Published
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import agenda, overlaps, runs, schedules
from celery_dynbeat.sweep import take_overdue

logger = logging.getLogger(__name__)

#: When all that is due is in the hands of other beats, look again after this.
ELSEWHERE_PAUSE = timedelta(milliseconds=50)
NOW = timedelta(0)
#: How often beat looks after what runs within dynbeat_node_timeout.
LOOKS = 4


class Outlet(Protocol):
    """Where runs leave: the Publisher, or what takes its place in a test."""

    def connect(self) -> None:
        """Be ready to publish, or raise."""

    def publish(self, batch: Sequence[Outgoing]) -> Published:
        """Hand ``batch`` over and tell what was taken; raise when nothing can be."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs, or raise when nobody can be asked."""


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
        self._heavy: frozenset[str] = frozenset()
        self._backlog = False
        self._looked_at: datetime | None = None

    def run_pass(self) -> timedelta:
        """Send a batch of what is due and return how long beat may sleep.

        Raises the database's or the broker's error when one of them is away; then nothing is lost,
        and the next pass goes on where this one broke off.
        """
        self._publisher.connect()
        now = self._clock.now()
        self._backlog = False
        todo = self._database.read(agenda.read)
        moved = self._plan_new(now) if todo.unplanned else 0
        if _is_due(todo.next_run_at, now):
            moved += self._dispatch_due(now)
        if _is_due(todo.overdue_at, now):
            moved += self._republish_overdue(now)
        moved += self._look_after_running(now)
        # Only when this pass has caught up with what is live: the past has waited so long already.
        if not self._backlog and _is_due(todo.backfill_at, now):
            moved += self._go_on_with_backfill(now)
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
        def work(session: Session) -> Claimed:
            claimed = claim(session, now=now, settings=self._settings, heavy=self._heavy)
            self._reached("recorded")
            return claimed

        claimed = self._database.run(work)
        self._reached("committed")
        self._heavy, self._backlog = claimed.heavy, claimed.full
        self._terminate(claimed.terminate)
        self._send(claimed.outgoing, Event.RUNS_DISPATCHED)
        return claimed.rows

    def _terminate(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        try:
            self._publisher.terminate(run_ids)
        # Of whatever kind: the runs end by themselves, and their successors must go out.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "%s runs not terminated: %s",
                len(run_ids),
                error,
                extra={"event": Event.TERMINATE_FAILED},
            )

    def _look_after_running(self, now: datetime) -> int:
        """Look for runs whose worker is gone, and for those that were to end and have not."""
        interval, looked_at = self._settings.node_timeout / LOOKS, self._looked_at
        # A clock that went back does not count.
        if looked_at is not None and timedelta(0) <= now - looked_at < interval:
            return 0
        settings = self._settings
        lost, failing = self._database.run(
            lambda session: take_lost(session, now=now, settings=settings),
        )
        for schedule_id, limit in failing.items():
            self._database.run(
                partial(pause_if_failing, schedule_id=schedule_id, limit=limit, now=now)
            )
        # The broadcast may have been missed, or never sent: beat may have died before it.
        asked = partial(overlaps.cancelled, before=now - interval, limit=settings.batch_size)
        self._terminate(self._database.read(asked))
        if lost < settings.batch_size:
            self._looked_at = now
        return lost

    def _republish_overdue(self, now: datetime) -> int:
        taken, overdue = self._database.run(
            lambda session: take_overdue(session, now=now, settings=self._settings),
        )
        self._reached("swept")
        self._send(overdue, Event.RUNS_REPUBLISHED)
        return taken

    def _go_on_with_backfill(self, now: datetime) -> int:
        def work(session: Session) -> tuple[int, list[Outgoing]]:
            done = go_on(session, now=now, settings=self._settings)
            self._reached("recorded")
            return done

        looked_at, outgoing = self._database.run(work)
        self._reached("committed")
        self._send(outgoing, Event.RUNS_BACKFILLED)
        return looked_at

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
