"""One pass of beat. Any number of beats can make passes at the same time.

    connect -> poll -> claim, plan, record (1 transaction) -> publish -> confirm (1 UPDATE)
                    -> sweep: take overdue runs (1 transaction) -> publish -> confirm
                    -> no backlog: a batch of a request, published and confirmed in the same way

If the sleep ended at a fire time or with a notification, the pass claims before it polls. If it
claimed a row, the next pass polls. While the confirm of one batch runs in the background, the next
batch is claimed, but not published. If a claim would need the result of the confirm, beat waits for
it. Beat also waits for it before it sleeps.

After a crash:

- before the commit: nothing has changed. The next pass of any beat claims the same rows.
- the result of the commit is lost: either nothing or everything is written. The unique key on
  (schedule, fire time) makes a repeat harmless.
- after the commit, before or during the publish: the runs are ``pending``, and the sweep publishes
  them.
- after the publish, before the confirm: the runs are ``pending``, and their messages are sent. The
  sweep publishes them again, and the guard in the worker lets one of two messages start.

The broker comes first. Without a broker nothing is claimed. Fire times that pass in the meantime
are misfires, and ``catch_up`` decides about them. The duties that need no broker continue
(``beat.duties``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.admission import Admission
from celery_dynbeat.beat.claim import Claimed, claim
from celery_dynbeat.beat.confirms import Confirms, Executor
from celery_dynbeat.beat.due_poller import LOCKED_PAUSE, DuePoller, is_due
from celery_dynbeat.beat.duties import NOW, Duty, Work, failing
from celery_dynbeat.beat.fairness import COSTLY_FOR, CostlyOwners
from celery_dynbeat.beat.holding import Review, quarantine_of
from celery_dynbeat.beat.pauses import end_pauses
from celery_dynbeat.beat.plans import plan_unplanned
from celery_dynbeat.beat.pruning import (
    FIRST_DELAY,
    SCAN_INTERVAL,
    Pruning,
    prune_changes,
    prune_runs,
)
from celery_dynbeat.beat.refused import Batches, Part
from celery_dynbeat.beat.replanning import Replanning
from celery_dynbeat.beat.rescue import Rescue
from celery_dynbeat.beat.sending import Sender
from celery_dynbeat.beat.settling import Settling
from celery_dynbeat.beat.sweep import Swept, take_overdue
from celery_dynbeat.beat.termination import Termination
from celery_dynbeat.beat.unsupported import Unsupported
from celery_dynbeat.broker.outages import ReportedOutage
from celery_dynbeat.broker.publisher import RunPublisher
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.process.left_out import LeftOut
from celery_dynbeat.store.schedules import due
from celery_dynbeat.store.schedules.due import DueSchedule, PendingWork
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.telemetry.events import BatchKind


def _no_failpoint(point: str) -> None:
    del point


T = TypeVar("T", Claimed, Swept)
R = TypeVar("R")
#: Most duties run this many times in one dynbeat_node_timeout.
ROUNDS_PER_NODE_TIMEOUT = 4


class Dispatcher:
    """Makes passes.

    ``failpoint`` is called with the name of each point at which a crash matters. ``executor`` runs
    the confirms. Without ``executor``, the confirms run in the calling thread. ``poll_interval``
    overrides the setting.
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
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._failpoint = failpoint
        self._confirms = Confirms(
            database=database,
            clock=clock,
            settings=settings,
            executor=executor or Executor(),
        )
        self._sender = Sender(
            database=database,
            publisher=publisher,
            confirms=self._confirms,
            clock=clock,
            failpoint=failpoint,
        )
        self._costly_in_rows: frozenset[str] = frozenset()
        self._costly_owners = CostlyOwners()
        self._has_backlog = False
        self._poller = DuePoller(
            database=database, interval=poll_interval or settings.poll_interval
        )
        self._left_out = LeftOut[int]("schedule")
        self._left_out_runs = LeftOut[str]("run")
        batches = partial(Batches[int], database=database, left_out=self._left_out)
        self._claims = batches(set_aside=self._set_aside)
        self._sweeps = Batches[str](database=database, left_out=self._left_out_runs)
        round_ = settings.node_timeout / ROUNDS_PER_NODE_TIMEOUT
        idle = poll_interval or settings.poll_interval
        duty = partial(Duty, database)
        # A paused schedule cannot be quarantined.
        self._end_pauses = duty("end pauses", self._changing(end_pauses, batches()))
        plans = batches(set_aside=self._set_aside)
        self._plan = duty("plan schedules", self._changing(plan_unplanned, plans))
        self._admission = Admission(database, settings)
        self._admit = duty(
            "admit runs",
            self._admission.run,
            every=idle if settings.owner_limits.may_cap_runs else max(idle, round_),
        )
        self._replanning = Replanning(
            database=database, settings=settings, interval=round_, left_out=self._left_out
        )
        self._replan = duty("replan schedules of calendars", self._replanning.run, every=round_)
        settling = Settling(database, self._left_out_runs, interval=round_)
        self._settle_recent = duty("settle recent runs", settling.settle_recent)
        rescue = Rescue(
            database=database, clock=clock, settings=settings, left_out=self._left_out_runs
        )
        self._silence = rescue.silence
        self._rounds = [
            duty("rescue", rescue.rescue, every=round_),
            duty("settle runs", settling.settle, every=round_),
            duty("resend retries", rescue.resend, every=round_),
            duty("review holds", Review(database).run, every=round_),
            duty("find unsupported triggers", Unsupported(database).run, every=round_),
        ]
        self._termination = Termination(database, publisher, interval=round_)
        self._terminate = duty("terminate", self._termination.run, every=round_)
        prune = partial(duty, every=SCAN_INTERVAL, delay=FIRST_DELAY)
        runs = Pruning(database, "run", prune_runs, older_than=settings.history_retention)
        changes = Pruning(database, "change", prune_changes, older_than=settings.audit_retention)
        self._prunes = [prune("prune runs", runs.run), prune("prune changes", changes.run)]
        on_demand = [self._end_pauses, self._plan, self._settle_recent]
        self._timed = [self._admit, self._replan, *self._rounds, self._terminate, *self._prunes]
        self._duties = [*on_demand, *self._timed]
        #: The error of the present pass that leaves only duties to do.
        self._failure: Exception | None = None

    def run_pass(self) -> timedelta:
        """Send a batch of due runs and return how long beat may sleep.

        Raises the error of the database or the broker if one of them is unreachable. In this case
        nothing is lost, because the next pass continues. Without a broker, and after another error,
        the duties that need no broker are done first.
        """
        try:
            return self._run_pass()
        except Exception as error:
            if self._database.is_outage(error):
                self.note_outage()
            raise

    def report(self) -> Sequence[ReportedOutage]:
        """Return the duties that fail and the rows that are left out, for the row of this node."""
        now = self._clock.now()
        left_out = [*self._left_out.report(now), *self._left_out_runs.report(now)]
        return [*failing(self._duties), *left_out]

    def reset_poller(self) -> None:
        """Make the next poll a full poll, as once in each dynbeat_poll_interval."""
        self._poller.reset()
        self._expect_changes()

    def on_change(self) -> None:
        """Make the next pass claim due rows, and make the following poll a full poll."""
        self._poller.on_change()
        self._expect_changes()

    def _expect_changes(self) -> None:
        if self._settings.owner_limits.may_cap_runs or self._admission.is_waiting:
            self._admit.expect()
        if self._replanning.has_calendars:
            self._replan.expect()

    def close(self) -> None:
        """Wait for the last confirm."""
        self._confirms.close()

    def note_outage(self) -> None:
        """Note that the database was unreachable, so the heartbeats of all nodes failed."""
        self._silence.note_outage(self._clock.now())

    def _run_pass(self) -> timedelta:
        self._failure = None
        self._has_backlog = False
        try:
            self._publisher.connect()
        # Any error of any transport: nothing can be sent.
        except Exception as error:  # noqa: BLE001
            self._failure = error
        # If the last confirm failed, claim nothing.
        self._attempt(self._confirms.check, default=None)
        now = self._clock.now()
        self._attempt(partial(self._confirms.start_again, now), default=None)
        if self._poller.expects_due(now) and self._dispatch_due(now):
            return NOW
        pending = self._poller.poll(
            now, except_ids=self._left_out.ids(now), except_runs=self._left_out_runs.ids(now)
        )
        # This comes before the unplanned schedules, because resumed schedules are planned in the
        # same transaction.
        handled = self._end_pauses.run(now) if is_due(pending.pause_ends_at, now) else 0
        handled += self._plan.run(now) if pending.unplanned else 0
        if is_due(pending.next_run_at, now):
            handled += self._dispatch_due(now)
        if is_due(pending.overdue_at, now):
            handled += self._attempt(partial(self._sweep, now), default=0)
        handled += self._run_duties(pending, now)
        if self._failure is not None:
            raise self._failure
        if handled:
            return NOW
        self._confirms.result()
        return self._wait_after(pending, now)

    def _run_duties(self, pending: PendingWork, now: datetime) -> int:
        """Run the duties that are due; return the number of changed rows."""
        self._silence.note_contact(now)
        has_broker = self._failure is None
        handled = self._admit.run(now) if has_broker else 0
        handled += self._replan.run(now)
        if pending.has_deferred and not self._has_backlog:
            handled += self._settle_recent.run(now)
        handled += sum(duty.run(now) for duty in self._rounds)
        if has_broker:
            self._terminate.run(now)
        # Pruning can wait. Fire times that are due come first.
        if not self._has_backlog:
            for duty in self._prunes:
                duty.run(now)
        return handled

    def _attempt(self, step: Callable[[], R], *, default: R) -> R:
        """Do a step that needs the broker, unless one has failed in this pass.

        An error is raised at the end of the pass, except that of an outage of the database.
        """
        if self._failure is not None:
            return default
        try:
            return step()
        # Any error of the database, the broker or the application's code in between.
        except Exception as error:
            if self._database.is_outage(error):
                raise
            self._failure = error
            return default

    def _wait_after(self, pending: PendingWork, now: datetime) -> timedelta:
        ends_at = pending.pause_ends_at
        if ends_at is not None:
            # After a failure, the duty waits.
            ends_at = max(ends_at, now + self._end_pauses.wait(now))
        waits = [duty.wait(now) for duty in self._timed]
        if self._confirms.are_left:
            waits.append(LOCKED_PAUSE)
        return min(self._poller.next_wait(replace(pending, pause_ends_at=ends_at), now), *waits)

    def _changing(self, change: Callable[..., int], batches: Batches[int]) -> Work:
        """Return the work of a duty that changes a batch of schedules with ``change``."""
        return lambda now: batches.change(change, now=now, settings=self._settings.for_pass())

    def _set_aside(self, row: DueSchedule, error: DBAPIError) -> bool:
        """Quarantine a schedule whose change the database refuses; return False if it refuses that.

        A row that another transaction has locked comes again later.
        """
        quarantined = quarantine_of(row, error, now=self._clock.now())

        def work(session: Session) -> None:
            if due.quarantine(
                session, schedule_id=row.id, version=row.version, error=quarantined.error
            ):
                emit_on_commit(session, quarantined)

        try:
            self._database.run(work)
        except RowLockedError:
            return True
        except DBAPIError as refused:
            if not self._database.capabilities.is_refusal(refused):
                raise
            return False
        return True

    def _dispatch_due(self, now: datetime) -> int:
        return self._attempt(partial(self._claim_and_send, now), default=0)

    def _claim_and_send(self, now: datetime) -> int:
        take_part = partial(
            claim,
            now=now,
            settings=self._settings.for_pass(),
            costly_in_rows=self._costly_in_rows,
            costly_owners=self._costly_owners.at(now),
            since=self._poller.watermark.no_due_before,
            outage_delay=self._publisher.outage_delay(),
        )

        def take(part: Part) -> Claimed:
            return self._take(partial(take_part, part=part), BatchKind.DUE)

        claimed = self._claims.run(take, now=now)
        if claimed is None:
            # The next pass continues with the part that is left.
            return 1
        self._costly_in_rows = claimed.costly_in_rows
        self._has_backlog = claimed.is_full
        if claimed.has_waiting:
            self._admit.expect()
        self._add_costly_owners(claimed.costly_owners, now)
        self._termination.request(claimed.terminate)
        self._sender.send(claimed.outgoing, BatchKind.DUE)
        return claimed.handled

    def _add_costly_owners(self, owners: frozenset[str], now: datetime) -> None:
        for owner in self._costly_owners.add(owners, now):
            if has_listeners(events.OwnerCostly):
                emit(events.OwnerCostly(owner=owner, second_for=COSTLY_FOR))

    def _sweep(self, now: datetime) -> int:
        # Runs whose confirm has not ended are not overdue.
        self._confirms.result()
        since = self._poller.watermark.no_overdue_before
        take_part = partial(take_overdue, now=now, settings=self._settings.for_pass(), since=since)

        def take(part: Part) -> Swept:
            return self._take(partial(take_part, part=part), BatchKind.OVERDUE)

        swept = self._sweeps.run(take, now=now)
        if swept is None:
            return 1
        if swept.has_waiting:
            self._admit.expect()
        self._sender.send(swept.outgoing, BatchKind.OVERDUE)
        return swept.handled

    def _take(self, take: Callable[[Session], T], kind: BatchKind) -> T:
        """Take runs in a transaction."""
        is_sweep = kind is BatchKind.OVERDUE

        def work(session: Session) -> T:
            taken = take(session)
            # A crash before the commit of a sweep does not matter, and neither does a crash if
            # there is nothing to commit.
            if taken.handled and not is_sweep:
                self._failpoint("recorded")
            return taken

        # The confirm waits for the disk, as does the start of a run in its worker. If a crash of
        # the server undoes the claim, none of its runs has started. Its rows are due again, and the
        # guard refuses a message without a row.
        taken = self._database.run(work, asynchronous_commit=kind is BatchKind.DUE)
        if taken.handled:
            self._failpoint("swept" if is_sweep else "committed")
        return taken
