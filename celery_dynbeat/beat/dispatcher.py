"""One pass of beat. Any number of beats can make passes at the same time.

    connect -> poll -> claim, plan, record (1 transaction) -> publish -> confirm (1 UPDATE)
                    -> sweep: take overdue runs (1 transaction) -> publish -> confirm
                    -> no backlog: a batch of a backfill and of a rerun, published and confirmed
                       in the same way

After a sleep that ended at a fire time or with a notification, the pass claims before it polls. If
it claimed a row, the next pass polls. While the confirm of one batch runs in the background, the
next batch is claimed, but not published. If a claim would need the result of the confirm, beat
waits for it. Beat also waits for it before it sleeps.

After a crash:

- before the commit: nothing has changed. The next pass of any beat claims the same rows.
- the result of the commit is lost: nothing or everything is written. The unique key on (schedule,
  fire time) makes a repeat harmless.
- after the commit, before or during the publish: the runs are ``pending``, and the sweep publishes
  them.
- after the publish, before the confirm: the runs are ``pending``, and their messages are sent. The
  sweep publishes them again, and the guard in the worker lets one of two messages start.

The broker comes first. Without a broker nothing is claimed. Fire times that pass in the meantime
are misfires, and ``catch_up`` decides about them.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.backfill import Backfilled, run_due_backfill
from celery_dynbeat.beat.background import Executor, InlineExecutor
from celery_dynbeat.beat.claim import Claimed, claim, plan_unplanned
from celery_dynbeat.beat.declined_runs import decide_declined
from celery_dynbeat.beat.due_poller import LOCKED_PAUSE, DuePoller, is_due
from celery_dynbeat.beat.fairness import COSTLY_FOR, CostlyOwners
from celery_dynbeat.beat.maintenance import Maintenance
from celery_dynbeat.beat.quarantine import add_facts, log_unpublishable
from celery_dynbeat.beat.reporting import report_published, report_quarantined
from celery_dynbeat.beat.rerun import RerunBatch, run_due_rerun
from celery_dynbeat.beat.sent_runs import log_declined, log_sent
from celery_dynbeat.beat.sweep import Swept, take_overdue
from celery_dynbeat.beat.termination import Termination
from celery_dynbeat.beat.traced_runs import TracedRuns
from celery_dynbeat.broker.base import RunPublisher
from celery_dynbeat.broker.publisher import PublishResult, unsent
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.store import due, runs, traces
from celery_dynbeat.store.pending_work import PendingWork
from celery_dynbeat.store.rows import RowLockedError

if TYPE_CHECKING:
    from celery_dynbeat.tracing.run_tracer import RunTracer

logger = logging.getLogger(__name__)

NOW = timedelta(0)
#: A run is sent again after at most this time, however long it has waited in the queue.
MAX_RESEND_AFTER = timedelta(days=1)


def _no_failpoint(point: str) -> None:
    del point


class _Unconfirmed(NamedTuple):
    """Runs whose messages were sent after ``attempt``, and when they are sent again."""

    ids: Sequence[str]
    attempt: int
    sent_at: datetime
    overdue_at: datetime


def _mark_sent(session: Session, sent: _Unconfirmed) -> Sequence[_Unconfirmed]:
    """Mark runs as sent; return those that another transaction has locked."""
    ids, attempt, now, overdue_at = sent
    if runs.mark_sent(session, ids, attempt=attempt, now=now, overdue_at=overdue_at) == len(ids):
        return ()
    left = runs.unmarked(session, ids)
    return [sent._replace(ids=left)] if left else ()


class Dispatcher:
    """Makes passes.

    ``failpoint`` is called with the name of each point at which a crash matters. ``executor`` runs
    the confirms; without one they run in the calling thread. ``poll_interval`` overrides the one of
    the settings. ``tracer`` None: no traces.
    """

    def __init__(
        self,
        *,
        database: Database,
        publisher: RunPublisher,
        clock: Clock,
        settings: Settings,
        failpoint: Callable[[str], None] = _no_failpoint,
        executor: Executor | None = None,
        poll_interval: timedelta | None = None,
        tracer: "RunTracer | None" = None,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._failpoint = failpoint
        self._tracer = tracer
        self._traces = TracedRuns(tracer)
        self._executor = executor or InlineExecutor()
        self._deprioritised_owners: frozenset[str] = frozenset()
        self._costly_owners = CostlyOwners()
        self._has_backlog = False
        self._unconfirmed: list[_Unconfirmed] = []
        self._is_held = False
        self._held_until: datetime | None = None
        self._poller = DuePoller(
            database=database, interval=poll_interval or settings.poll_interval
        )
        self._termination = Termination(publisher)
        self._maintenance = Maintenance(
            database=database, termination=self._termination, clock=clock, settings=settings
        )

    def run_pass(self) -> timedelta:
        """Send a batch of due runs and return how long beat may sleep.

        Raises the error of the database or the broker if one of them is unreachable. Nothing is
        lost then: the next pass continues.
        """
        self._publisher.connect()
        try:
            return self._run_pass()
        except SQLAlchemyError:
            self.note_outage()
            raise

    def reset_poller(self) -> None:
        """Make the next poll a full one, as once in each dynbeat_poll_interval."""
        self._poller.reset()

    def on_change(self) -> None:
        """Make the next pass claim what is due, and the poll after it a full one."""
        self._poller.on_change()

    def close(self) -> None:
        """Wait for the last confirm."""
        self._executor.close()

    def note_outage(self) -> None:
        """Note that the database was unreachable."""
        self._maintenance.note_outage()

    def _run_pass(self) -> timedelta:
        # If the last confirm failed, the database may be unreachable: claim nothing.
        self._executor.check()
        now = self._clock.now()
        if self._unconfirmed:
            self._confirm_again(now)
        self._has_backlog = False
        if self._poller.expects_due(now) and self._dispatch_due(now):
            return NOW
        pending = self._poller.poll(now)
        self._note_hold(pending, now)
        handled = self._plan_unplanned(now) if pending.unplanned else 0
        if is_due(pending.next_run_at, now):
            handled += self._dispatch_due(now)
        if is_due(pending.overdue_at, now):
            handled += self._sweep(now)
        if pending.has_deferred:
            handled += self._maintenance.settle(now)
        handled += self._maintenance.rescue(now)
        # Backfills, reruns and pruning can wait. Fire times that are due come first.
        if not self._has_backlog and is_due(pending.backfill_at, now):
            handled += self._backfill(now)
        if not self._has_backlog and is_due(pending.rerun_at, now):
            handled += self._rerun(now)
        if not self._has_backlog:
            self._maintenance.prune(now)
        if handled:
            return NOW
        self._executor.result()
        return self._wait_after(pending, now)

    def _note_hold(self, pending: PendingWork, now: datetime) -> None:
        """Note when a hold of everything ends: what it stopped is not late."""
        if self._is_held and not pending.is_held:
            self._held_until = now
        self._is_held = pending.is_held

    def _wait_after(self, pending: PendingWork, now: datetime) -> timedelta:
        wait, maintenance_at = self._poller.next_wait(pending, now), self._maintenance.next_at
        if self._unconfirmed:
            wait = min(wait, LOCKED_PAUSE)
        return wait if maintenance_at is None else min(wait, maintenance_at - now)

    def _plan_unplanned(self, now: datetime) -> int:
        return self._database.run(partial(plan_unplanned, now=now, settings=self._settings))

    def _dispatch_due(self, now: datetime) -> int:
        outage_delay = self._publisher.outage_delay()

        def work(session: Session) -> Claimed:
            claimed = claim(
                session,
                now=now,
                settings=self._settings,
                deprioritised_owners=self._deprioritised_owners,
                costly_owners=self._costly_owners.at(now),
                since=self._poller.watermark.no_due_before,
                outage_delay=outage_delay,
                held_until=now if self._is_held else self._held_until,
            )
            self._traces.read(session, claimed.outgoing)
            # A crash in a claim of nothing does not matter.
            if claimed.handled:
                self._failpoint("recorded")
            return claimed

        began_ns = time.time_ns()
        claimed = self._database.run(work)
        if claimed.handled:
            self._failpoint("committed")
        self._deprioritised_owners = claimed.deprioritised_owners
        self._has_backlog = claimed.is_full
        self._add_costly_owners(claimed.costly_owners, now)
        self._termination.request(claimed.terminate)
        self._send(claimed.outgoing, Event.RUNS_DISPATCHED, began_ns)
        return claimed.handled

    def _add_costly_owners(self, owners: frozenset[str], now: datetime) -> None:
        for owner in self._costly_owners.add(owners, now):
            logger.warning(
                "schedules of owner %r take long to plan: other owners come first for %d s",
                owner,
                COSTLY_FOR.total_seconds(),
                extra={"event": Event.OWNER_DEPRIORITISED, "owner": owner},
            )

    def _sweep(self, now: datetime) -> int:
        # Runs whose confirm has not ended are not overdue.
        self._executor.result()
        since = self._poller.watermark.no_overdue_before

        def work(session: Session) -> Swept:
            swept = take_overdue(session, now=now, settings=self._settings, since=since)
            self._traces.read(session, swept.outgoing, may_have_traces=True)
            return swept

        began_ns = time.time_ns()
        swept = self._database.run(work)
        self._failpoint("swept")
        self._send(swept.outgoing, Event.RUNS_REPUBLISHED, began_ns)
        return swept.handled

    def _backfill(self, now: datetime) -> int:
        def work(session: Session) -> Backfilled:
            backfilled = run_due_backfill(session, now=now, settings=self._settings)
            self._traces.read(session, backfilled.outgoing)
            self._failpoint("recorded")
            return backfilled

        began_ns = time.time_ns()
        backfilled = self._database.run(work)
        self._failpoint("committed")
        self._send(backfilled.outgoing, Event.RUNS_BACKFILLED, began_ns)
        return backfilled.handled

    def _rerun(self, now: datetime) -> int:
        def work(session: Session) -> RerunBatch:
            batch = run_due_rerun(session, now=now, settings=self._settings)
            self._traces.read(session, batch.outgoing, may_have_traces=True)
            self._failpoint("recorded")
            return batch

        began_ns = time.time_ns()
        batch = self._database.run(work)
        self._failpoint("committed")
        self._send(batch.outgoing, Event.RUNS_RERUN, began_ns)
        return batch.handled

    def _send(self, outgoing: Sequence[OutgoingRun], event: Event, began_ns: int) -> None:
        """Wait for the last confirm, publish the runs, and start their confirm.

        If the last confirm failed, its error is raised after the runs are sent: publishing needs no
        database, and the runs are due. ``began_ns``: when the transaction that took the runs began.
        """
        if not outgoing:
            return
        contexts = self._traces.start(outgoing, began_ns=began_ns)
        last_error = self._last_confirm_error()
        published = self._publish(outgoing)
        self._confirm(outgoing, published, contexts)
        log_sent(outgoing, published, event)
        report_published(
            outgoing,
            published,
            publisher=self._publisher,
            now=self._clock.now(),
            again=event is Event.RUNS_REPUBLISHED,
        )
        if last_error is not None:
            raise last_error

    def _last_confirm_error(self) -> Exception | None:
        try:
            self._executor.result()
        # Any error: _send raises it.
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _publish(self, outgoing: Sequence[OutgoingRun]) -> PublishResult:
        published = self._publish_traced(outgoing)
        self._failpoint("published")
        # Before the confirm: if beat dies in between, the error is already on the schedule.
        for run in (run for run in outgoing if run.run_id in published.refused):
            try:
                self._quarantine(run, published.refused[run.run_id])
            except RowLockedError:
                # The run stays pending, and the sweep publishes it again.
                del published.refused[run.run_id]
        for run in (run for run in outgoing if run.run_id in published.declined):
            log_declined(run, published.declined[run.run_id])
        return published

    def _publish_traced(self, outgoing: Sequence[OutgoingRun]) -> PublishResult:
        if self._tracer is None:
            return self._publisher.publish(outgoing)
        failures = dict.fromkeys((run.run_id for run in outgoing), "the broker is unreachable")
        try:
            published = self._publisher.publish(outgoing)
            failures = unsent(published)
        finally:
            self._tracer.published(failures)
        return published

    def _quarantine(self, run: OutgoingRun, error: DispatchError) -> None:
        text = f"{type(error).__name__}: {error}"
        quarantine = partial(due.quarantine, schedule_id=run.schedule_id, version=run.version)
        report = partial(report_quarantined, owner=run.owner, name=run.name, error=text)
        now = self._clock.now()

        def work(session: Session) -> None:
            if quarantine(session, error=text):
                report(session, schedule_id=run.schedule_id)
                add_facts(session, [run.schedule_id], now=now)

        # In a separate transaction: a schedule must be locked before its runs.
        self._database.run(work)
        log_unpublishable(run, error, run_id=run.run_id)

    def _confirm(
        self,
        outgoing: Sequence[OutgoingRun],
        published: PublishResult,
        contexts: Mapping[str, str],
    ) -> None:
        statements = self._confirm_statements(outgoing, published)

        def confirm() -> None:
            self._unconfirmed += self._database.run_autocommit(statements)
            if contexts:
                self._database.run(partial(traces.store, contexts=contexts))

        self._executor.submit(confirm)
        if published.delayed or any(run.overlap != "allow" for run in outgoing):
            # The next poll must see when a delayed run is overdue. The next claim must not take a
            # run whose sent_at is not yet written for a buffered one.
            self._executor.result()

    def _confirm_statements(
        self, outgoing: Sequence[OutgoingRun], published: PublishResult
    ) -> "Callable[[Session], Sequence[_Unconfirmed]]":
        """Return the function that writes how the runs were published.

        It holds their ids only: the runs need much memory. It returns what it could not write.
        """
        now = self._clock.now()
        declined = decide_declined(outgoing, published, now=now, settings=self._settings)
        sent = {*published.sent, *declined.sent}
        sent_alike: defaultdict[tuple[datetime, int], list[str]] = defaultdict(list)
        for run in outgoing:
            if run.run_id in sent:
                sent_alike[self._overdue_at(run, now), run.attempt].append(run.run_id)
        refused = {run_id: str(error) for run_id, error in published.refused.items()}
        delayed: defaultdict[datetime, list[str]] = defaultdict(list)
        for run_id, retry_at in published.delayed.items():
            delayed[retry_at].append(run_id)

        def confirm(session: Session) -> Sequence[_Unconfirmed]:
            marked = [
                _mark_sent(session, _Unconfirmed(ids, attempt, now, overdue_at))
                for (overdue_at, attempt), ids in sent_alike.items()
            ]
            for run_id, error in refused.items():
                runs.mark_unpublishable(session, run_id=run_id, now=now, error=error)
            for retry_at, ids in delayed.items():
                runs.lease(session, ids, overdue_at=retry_at)
            for reason, run_ids in declined.revoked.items():
                runs.revoke_free(session, run_ids, now=now, reason=reason)
            return [each for left in marked for each in left]

        return confirm

    def _confirm_again(self, now: datetime) -> None:
        """Mark the runs as sent that were locked: by a worker that started them, or by a call.

        Pending runs that stay locked are left to the sweep.
        """
        self._executor.result()
        left, self._unconfirmed = self._unconfirmed, []
        left = [each for each in left if now - each.sent_at < self._settings.dispatch_timeout]

        def confirm(session: Session) -> Sequence[_Unconfirmed]:
            return [still for each in left for still in _mark_sent(session, each)]

        def confirm_again() -> None:
            self._unconfirmed += self._database.run_autocommit(confirm)

        if left:
            self._executor.submit(confirm_again)

    def _overdue_at(self, run: OutgoingRun, now: datetime) -> datetime:
        """Return when a sent run that has not started is overdue."""
        resend_at = now + self._resend_after(run, now)
        if run.expires_at is None:
            return resend_at
        # Soon after it expires: the broker may have dropped the message without a notice.
        return min(resend_at, run.expires_at + self._settings.dispatch_timeout)

    def _resend_after(self, run: OutgoingRun, now: datetime) -> timedelta:
        """Return after how long the run is sent again: about as long as it has waited so far.

        Each message thus doubles the time to the next one, and copies do not fill a long queue.
        """
        resend_after = self._settings.resend_after
        waited = timedelta(0) if run.unstarted_since is None else now - run.unstarted_since
        while resend_after < min(waited, MAX_RESEND_AFTER):
            # Doubled in steps, so that many runs share one value and one UPDATE.
            resend_after *= 2
        return resend_after
