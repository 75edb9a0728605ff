"""One pass of beat. Any number of beats may make passes at once.

    connect -> agenda -> claim, plan, record (1 transaction) -> publish -> confirm (1 UPDATE)
                      -> sweep: take what is overdue (1 transaction) -> publish -> confirm
                      -> when nothing due is left behind: a batch of a backfill, likewise

A pass behind a sleep, which ended at a fire time or because a change was told, claims before it
asks for the agenda; when there was something to claim, the next pass asks. While the database
answers a confirm the next batch is claimed, but not published, unless a claim would have to know
its answer; before beat sleeps, all is answered.

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

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.backfill import go_on
from celery_dynbeat.beat.background import AtOnce, Calls
from celery_dynbeat.beat.claim import Claimed, claim, plan_unplanned
from celery_dynbeat.beat.declined_runs import decide
from celery_dynbeat.beat.due_poller import DuePoller, is_due
from celery_dynbeat.beat.fairness import REMEMBERED, CostlyOwners
from celery_dynbeat.beat.maintenance import Maintenance
from celery_dynbeat.beat.sweep import take_overdue
from celery_dynbeat.beat.termination import Termination
from celery_dynbeat.broker.base import RunPublisher
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.store import due, runs

logger = logging.getLogger(__name__)

NOW = timedelta(0)
#: However long a run has waited in the broker's queue, it is sent again after this.
LONGEST_WAIT = timedelta(days=1)


def _nothing(point: str) -> None:
    del point


class Dispatcher:
    """Makes passes. ``reached`` is called with the name of each point at which a crash matters.

    Confirms are made ``beside`` the next claim; without it, before that. ``poll_interval`` is that
    of the settings where none is given.
    """

    def __init__(
        self,
        *,
        database: Database,
        publisher: RunPublisher,
        clock: Clock,
        settings: Settings,
        reached: Callable[[str], None] = _nothing,
        beside: Calls | None = None,
        poll_interval: timedelta | None = None,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._reached = reached
        self._beside = beside or AtOnce()
        self._deprioritised_owners: frozenset[str] = frozenset()
        self._costly = CostlyOwners()
        self._backlog = False
        self._lookout = DuePoller(
            database=database, interval=poll_interval or settings.poll_interval
        )
        self._termination = Termination(publisher)
        self._rounds = Maintenance(
            database=database, termination=self._termination, clock=clock, settings=settings
        )

    def run_pass(self) -> timedelta:
        """Send a batch of what is due and return how long beat may sleep.

        Raises the database's or the broker's error when one of them is away; then nothing is lost,
        and the next pass goes on where this one broke off.
        """
        self._publisher.connect()
        try:
            return self._run_pass()
        except SQLAlchemyError:
            self.note_outage()
            raise

    def look_everywhere(self) -> None:
        """Let the next pass look where nothing was due, as one each dynbeat_poll_interval does."""
        self._lookout.everywhere()

    def on_change(self) -> None:
        """Let the next pass claim what is due by now, and the one behind it look everywhere."""
        self._lookout.on_change()

    def close(self) -> None:
        """Wait for what is being confirmed."""
        self._beside.close()

    def note_outage(self) -> None:
        """Note that the database was away."""
        self._rounds.note_outage()

    def _run_pass(self) -> timedelta:
        # Behind a confirm that has failed nothing new is claimed: the database may be away.
        self._beside.check()
        now = self._clock.now()
        self._backlog = False
        if self._lookout.expects_due(now) and self._dispatch_due(now):
            return NOW
        todo = self._lookout.look(now)
        moved = self._plan_new(now) if todo.unplanned else 0
        if is_due(todo.next_run_at, now):
            moved += self._dispatch_due(now)
        if is_due(todo.overdue_at, now):
            moved += self._republish_overdue(now)
        moved += self._rounds.look_after_running(now)
        # Only when this pass has caught up with what is live: the past has waited so long already.
        if not self._backlog and is_due(todo.backfill_at, now):
            moved += self._go_on_with_backfill(now)
        if not self._backlog:
            self._rounds.prune(now)
        if moved:
            return NOW
        self._beside.settle()
        pause, next_round_at = self._lookout.rest(todo, now), self._rounds.next_at
        return pause if next_round_at is None else min(pause, next_round_at - now)

    def _plan_new(self, now: datetime) -> int:
        return self._database.run(
            lambda session: plan_unplanned(session, now=now, settings=self._settings),
        )

    def _dispatch_due(self, now: datetime) -> int:
        hold = self._publisher.outage_delay()

        def work(session: Session) -> Claimed:
            claimed = claim(
                session,
                now=now,
                settings=self._settings,
                heavy=self._deprioritised_owners,
                costly=self._costly.at(now),
                since=self._lookout.front.no_due_before,
                hold=hold,
            )
            # A claim of nothing is no point at which a crash would matter.
            if claimed.rows:
                self._reached("recorded")
            return claimed

        claimed = self._database.run(work)
        if claimed.rows:
            self._reached("committed")
        self._deprioritised_owners, self._backlog = claimed.heavy, claimed.full
        self._remember_costly(claimed.costly, now)
        self._termination.ask(claimed.terminate)
        self._send(claimed.outgoing, Event.RUNS_DISPATCHED)
        return claimed.rows

    def _remember_costly(self, owners: frozenset[str], now: datetime) -> None:
        for owner in self._costly.remember(owners, now):
            logger.warning(
                "schedules of owner %r take long to plan: other owners come first for %d s",
                owner,
                REMEMBERED.total_seconds(),
                extra={"event": Event.OWNER_DEPRIORITISED, "owner": owner},
            )

    def _republish_overdue(self, now: datetime) -> int:
        # What is just being confirmed is not overdue.
        self._beside.settle()
        since = self._lookout.front.no_overdue_before
        taken, overdue = self._database.run(
            partial(take_overdue, now=now, settings=self._settings, since=since),
        )
        self._reached("swept")
        self._send(overdue, Event.RUNS_REPUBLISHED)
        return taken

    def _go_on_with_backfill(self, now: datetime) -> int:
        def work(session: Session) -> tuple[int, list[OutgoingRun]]:
            done = go_on(session, now=now, settings=self._settings)
            self._reached("recorded")
            return done

        looked_at, outgoing = self._database.run(work)
        self._reached("committed")
        self._send(outgoing, Event.RUNS_BACKFILLED)
        return looked_at

    def _send(self, outgoing: Sequence[OutgoingRun], event: Event) -> None:
        if not outgoing:
            return
        failed = self._settle()
        published = self._publisher.publish(outgoing)
        self._reached("published")
        # The schedule first: its fault is plain then, whatever becomes of beat in between.
        for run in (run for run in outgoing if run.run_id in published.refused):
            self._set_aside(run, published.refused[run.run_id])
        _log_unsent(published)
        confirm = self._confirm_of(outgoing, published)
        self._beside.begin(partial(self._database.run_autocommit, confirm))
        if published.delayed or any(run.overlap != "allow" for run in outgoing):
            # The next look finds when a delayed run is overdue. A claim takes a run without sent_at
            # for one that waits behind another.
            self._beside.settle()
        # The outage was logged when it began.
        if len(published.delayed) < len(outgoing):
            logger.info(
                "%s %s of %s",
                event.replace("_", " "),
                len(published.sent),
                len(outgoing),
                extra={"event": event, "sent": len(published.sent), "claimed": len(outgoing)},
            )
        if logger.isEnabledFor(logging.DEBUG):
            for run in outgoing:
                logger.debug("sent run %s of %r (%s)", run.run_id, run.name, run.task)

        if failed is not None:
            raise failed

    def _settle(self) -> Exception | None:
        """Wait for the last confirm and return what it raised.

        What has been claimed since is sent all the same: it needs no database, and has no time.
        """
        try:
            self._beside.settle()
        # Of whatever kind: it is raised when the runs at hand are out.
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _confirm_of(
        self, outgoing: Sequence[OutgoingRun], published: PublishResult
    ) -> Callable[[Session], None]:
        """Return what writes which runs are sent. It holds their ids alone: runs take memory."""
        now = self._clock.now()
        unsent = decide(outgoing, published, now=now, settings=self._settings)
        sent = {*published.sent, *unsent.sent}
        alike: defaultdict[tuple[datetime, int], list[str]] = defaultdict(list)
        for run in outgoing:
            if run.run_id in sent:
                alike[self._look_again_at(run, now), run.attempt].append(run.run_id)
        refused = {run_id: str(error) for run_id, error in published.refused.items()}
        delayed: defaultdict[datetime, list[str]] = defaultdict(list)
        for run_id, retry_at in published.delayed.items():
            delayed[retry_at].append(run_id)

        def confirm(session: Session) -> None:
            for (overdue_at, attempt), ids in alike.items():
                runs.mark_sent(session, ids, attempt=attempt, now=now, overdue_at=overdue_at)
            for run_id, error in refused.items():
                runs.mark_unpublishable(session, run_id=run_id, now=now, error=error)
            for retry_at, ids in delayed.items():
                runs.lease(session, ids, overdue_at=retry_at)
            for reason, ids in unsent.revoked.items():
                runs.revoke(session, ids, now=now, reason=reason)

        return confirm

    def _look_again_at(self, run: OutgoingRun, now: datetime) -> datetime:
        resend_at = now + self._resend_after(run, now)
        if run.expires_at is None:
            return resend_at
        # Soon after its expiry: the broker may have dropped the message without a word.
        return min(resend_at, run.expires_at + self._settings.dispatch_timeout)

    def _resend_after(self, run: OutgoingRun, now: datetime) -> timedelta:
        """Return how long the queue has for the run: about as long again as it has waited so far.

        So a long queue is not filled up with copies; each doubles the time to the next.
        """
        again = self._settings.resend_after
        waited = timedelta(0) if run.waiting_since is None else now - run.waiting_since
        while again < min(waited, LONGEST_WAIT):
            # In steps, so that many runs share one, and one UPDATE.
            again *= 2
        return again

    def _set_aside(self, run: OutgoingRun, error: DispatchError) -> None:
        logger.error(
            "%s; schedule %r of owner %r is set aside",
            error,
            run.name,
            run.owner,
            extra={"event": Event.RUN_UNPUBLISHABLE, "run_id": run.run_id},
        )
        # In a transaction of its own: schedules are locked before their runs.
        self._database.run(
            partial(
                due.quarantine,
                schedule_id=run.schedule_id,
                version=run.version,
                error=f"{type(error).__name__}: {error}",
            )
        )


def _log_unsent(published: PublishResult) -> None:
    for run_id, reason in published.declined.items():
        extra = {"event": Event.RUN_DECLINED, "run_id": run_id}
        logger.info("run %s not sent: %s", run_id, reason, extra=extra)
