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
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.claim import Claimed, claim, plan_unplanned
from celery_dynbeat.beat.confirms import Confirms, Executor, InlineExecutor
from celery_dynbeat.beat.duties import Duties
from celery_dynbeat.beat.fairness import COSTLY_FOR, CostlyOwners
from celery_dynbeat.beat.holding import quarantine_of
from celery_dynbeat.beat.maintenance import RESCUES_PER_NODE_TIMEOUT, Maintenance, Termination
from celery_dynbeat.beat.refused import Batches, LeftOut, Part
from celery_dynbeat.beat.sweep import Swept, take_overdue
from celery_dynbeat.broker.outages import ReportedOutage
from celery_dynbeat.broker.publisher import PublishResult, RunPublisher
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import lag_of
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import runs
from celery_dynbeat.store.schedules import due
from celery_dynbeat.store.schedules.due import DueSchedule, PendingWork
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.telemetry.events import BatchKind

if TYPE_CHECKING:
    from celery_dynbeat.beat.admission import Admission
    from celery_dynbeat.beat.replanning import Replanning

#: Beat polls again after this time if other beats have locked all due rows.
LOCKED_PAUSE = timedelta(milliseconds=50)
#: An instant before any instant that a clock shows.
_ALWAYS = datetime.min.replace(tzinfo=UTC)


class DuePoller:
    """Polls the database for pending work, and computes how long beat may sleep.

        full poll (once per interval) -> watermark: nothing was due before it
        other polls                   -> start at the watermark
        nothing due, no notification  -> the last result is used again, without a query

    A full poll finds rows that were committed late, with an instant before the watermark.
    """

    def __init__(self, *, database: Database, interval: timedelta) -> None:
        self._database = database
        self._interval = interval
        self._watermark = due.NO_WATERMARK
        self._full_poll_at: datetime | None = None
        self._expected_at: datetime | None = None
        self._idle: due.PendingWork | None = None

    @property
    def watermark(self) -> due.Watermark:
        """The instants before which the last poll found nothing."""
        return self._watermark

    def reset(self) -> None:
        """Make the next poll a full poll, because a row that is committed late may be due."""
        self._watermark, self._full_poll_at, self._idle = due.NO_WATERMARK, None, None

    def on_change(self) -> None:
        """Expect due rows after a change of a schedule, and make the next poll a full poll."""
        self.reset()
        self._expected_at = _ALWAYS

    def expects_due(self, now: datetime) -> bool:
        """Return whether a schedule should be due, so that a claim without a poll is worth it.

        The result is True once after each ``next_wait`` or ``on_change``.
        """
        expected_at, self._expected_at = self._expected_at, None
        return is_due(expected_at, now)

    def poll(
        self,
        now: datetime,
        *,
        except_ids: frozenset[int] = frozenset(),
        except_runs: frozenset[str] = frozenset(),
    ) -> due.PendingWork:
        """Return the pending work without the schedules and the runs that beat leaves out."""
        idle, self._idle = self._idle, None
        if not self._is_fresh(now):
            self._watermark, self._full_poll_at = due.NO_WATERMARK, now
        elif idle is not None and not is_due(idle.earliest(), now):
            return idle
        until = now + self._interval
        read = partial(
            due.read_pending,
            now=now,
            until=until,
            watermark=self._watermark,
            except_ids=except_ids,
            except_runs=except_runs,
        )
        pending = self._database.read(read)
        self._watermark = pending.watermark
        return pending

    def _is_fresh(self, now: datetime) -> bool:
        at = self._full_poll_at
        # ``now`` is before ``at`` when the clock was set back.
        return at is not None and at <= now < at + self._interval

    def next_wait(self, pending: due.PendingWork, now: datetime) -> timedelta:
        """Return how long beat may sleep after a pass that has left only ``pending``."""
        earliest = pending.earliest()
        if is_due(earliest, now):
            return LOCKED_PAUSE
        self._idle, self._expected_at = pending, pending.next_run_at
        full_poll_at = None if self._full_poll_at is None else self._full_poll_at + self._interval
        return min([self._interval, *(at - now for at in (earliest, full_poll_at) if at)])


def is_due(instant: datetime | None, now: datetime) -> bool:
    """Return whether ``instant`` is not after ``now``. None is never due."""
    return instant is not None and instant <= now


NOW = timedelta(0)


def _no_failpoint(point: str) -> None:
    del point


class _Taken(Protocol):
    """Runs that a transaction took. ``handled`` is the number of rows."""

    @property
    def handled(self) -> int: ...

    @property
    def outgoing(self) -> Sequence[OutgoingRun]: ...


T = TypeVar("T", bound=_Taken)
R = TypeVar("R")
#: The names of duties.
END_PAUSES, PLAN, ADMIT = "end pauses", "plan schedules", "admit runs"
REPLAN = "replan schedules of calendars"


class _LazyAdmission:
    """Looks for waiting runs from time to time.

    Once it finds one, ``beat.admission`` admits waiting runs. Runs may wait even if this beat's
    settings contain no limit, because the last limit was removed or another process has one. In
    this case, the search is as frequent as maintenance.
    """

    def __init__(self, database: Database, settings: Settings, *, idle_interval: timedelta) -> None:
        self._database, self._settings = database, settings
        self._idle_interval = idle_interval
        self._interval = (
            idle_interval
            if settings.may_cap_runs
            else max(idle_interval, settings.node_timeout / RESCUES_PER_NODE_TIMEOUT)
        )
        self._next_at: datetime | None = None
        self._admission: Admission | None = None

    def expect(self) -> None:
        """Look for waiting runs in the next pass if a new one is possible."""
        if self._admission is not None:
            self._admission.expect()
        elif self._settings.may_cap_runs:
            self._next_at = None

    def wait(self, now: datetime) -> timedelta:
        """Return how long beat may sleep."""
        if self._admission is not None:
            return self._admission.wait(now)
        return NOW if self._next_at is None else max(NOW, self._next_at - now)

    def run(self, now: datetime) -> int:
        """Admit waiting runs if it is time; return their number."""
        at = self._next_at
        # An instant far after ``now`` means that the clock was set back.
        is_due = at is None or not now < at <= now + self._interval
        if self._admission is None and is_due:
            self._next_at = now + self._interval
            if self._database.read(runs.has_waiting):
                self._admission = self._imported()
        return 0 if self._admission is None else self._admission.run(now)

    def _imported(self) -> "Admission":
        from celery_dynbeat.beat.admission import Admission  # noqa: PLC0415

        return Admission(
            database=self._database, settings=self._settings, idle_interval=self._idle_interval
        )


class _LazyReplanning:
    """Looks for a calendar from time to time. Once it finds one, ``beat.replanning`` does its work.

    A beat without calendars executes one short query in each interval of maintenance.
    """

    def __init__(self, database: Database, settings: Settings, left_out: LeftOut[int]) -> None:
        self._database, self._settings, self._left_out = database, settings, left_out
        self._interval = settings.node_timeout / RESCUES_PER_NODE_TIMEOUT
        self._next_at: datetime | None = None
        self._replanning: Replanning | None = None

    def expect(self) -> None:
        """Look for a changed calendar in the next pass, if there are calendars."""
        if self._replanning is not None:
            self._next_at = None

    def wait(self, now: datetime) -> timedelta:
        """Return how long beat may sleep."""
        if self._replanning is None or self._replanning.next_at is None:
            return timedelta.max
        return max(NOW, self._replanning.next_at - now)

    def run(self, now: datetime) -> int:
        """Plan schedules of changed calendars again if it is time; return their number."""
        at = self._next_at
        # An instant far after ``now`` means that the clock was set back.
        if at is not None and now < at <= now + self._interval:
            return 0
        self._next_at = now + self._interval
        if self._replanning is None:
            if not self._database.read(due.has_calendars):
                return 0
            self._replanning = self._imported()
        handled = self._replanning.run(now)
        self._next_at = self._replanning.next_at or self._next_at
        return handled

    def _imported(self) -> "Replanning":
        from celery_dynbeat.beat.replanning import Replanning  # noqa: PLC0415

        return Replanning(
            database=self._database,
            settings=self._settings,
            interval=self._interval,
            left_out=self._left_out,
        )


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
        duties: Duties | None = None,
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
            executor=executor or InlineExecutor(),
        )
        self._costly_in_rows: frozenset[str] = frozenset()
        self._costly_owners = CostlyOwners()
        self._has_backlog = False
        self._is_held = False
        self._held_until: datetime | None = None
        self._poller = DuePoller(
            database=database, interval=poll_interval or settings.poll_interval
        )
        self._admission = _LazyAdmission(
            database, settings, idle_interval=poll_interval or settings.poll_interval
        )
        self._termination = Termination(publisher)
        self.duties = duties or Duties(database)
        self._left_out = LeftOut[int]("schedule")
        self._replanning = _LazyReplanning(database, settings, self._left_out)
        self._left_out_runs = LeftOut[str]("run")
        size = settings.batch_size
        batches = partial(Batches[int], database=database, size=size, left_out=self._left_out)
        self._claims = batches(set_aside=self._set_aside)
        self._plans = batches(set_aside=self._set_aside)
        # A paused schedule cannot be quarantined.
        self._resumes = batches()
        self._sweeps = Batches[str](database=database, size=size, left_out=self._left_out_runs)
        self._maintenance = Maintenance(
            database=database,
            termination=self._termination,
            clock=clock,
            settings=settings,
            duties=self.duties,
            left_out_runs=self._left_out_runs,
        )
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
        return [*self.duties.report(), *left_out]

    def reset_poller(self) -> None:
        """Make the next poll a full poll, as once in each dynbeat_poll_interval."""
        self._poller.reset()
        self._admission.expect()
        self._replanning.expect()

    def on_change(self) -> None:
        """Make the next pass claim due rows, and make the following poll a full poll."""
        self._poller.on_change()
        self._admission.expect()
        self._replanning.expect()

    def close(self) -> None:
        """Wait for the last confirm."""
        self._confirms.close()

    def note_outage(self) -> None:
        """Note that the database was unreachable, so the heartbeats of all nodes failed."""
        self._maintenance.note_outage(self._clock.now())

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
        self._note_hold(pending, now)
        run = partial(self.duties.run, now=now, default=0)
        # This comes before the unplanned schedules, because resumed schedules are planned in the
        # same transaction.
        handled = run(END_PAUSES, self._end_pauses) if is_due(pending.pause_ends_at, now) else 0
        handled += run(PLAN, self._plan_unplanned) if pending.unplanned else 0
        if is_due(pending.next_run_at, now):
            handled += self._dispatch_due(now)
        if is_due(pending.overdue_at, now):
            handled += self._attempt(partial(self._sweep, now), default=0)
        if self._failure is None:
            handled += run(ADMIT, self._admission.run)
        handled += run(REPLAN, self._replanning.run)
        if pending.has_deferred and not self._has_backlog:
            handled += self._maintenance.settle_recent(now)
        handled += self._maintenance.run_interval(now, has_broker=self._failure is None)
        # Pruning can wait. Fire times that are due come first.
        if not self._has_backlog:
            self._maintenance.prune(now)
        if self._failure is not None:
            raise self._failure
        if handled:
            return NOW
        self._confirms.result()
        return self._wait_after(pending, now)

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

    def _note_hold(self, pending: PendingWork, now: datetime) -> None:
        """Note the end of a hold of everything, because the runs that it stopped are not late."""
        if self._is_held and not pending.is_held:
            self._held_until = now
        self._is_held = pending.is_held

    def _wait_after(self, pending: PendingWork, now: datetime) -> timedelta:
        wait = self._poller.next_wait(self._without_failing(pending, now), now)
        if self._confirms.are_left:
            wait = min(wait, LOCKED_PAUSE)
        admission_wait = max(self._admission.wait(now), self.duties.wait(ADMIT, now))
        replanning_wait = max(self._replanning.wait(now), self.duties.wait(REPLAN, now))
        return min(wait, admission_wait, replanning_wait, self._maintenance.wait(now))

    def _without_failing(self, pending: PendingWork, now: datetime) -> PendingWork:
        """Return the pending work, with what a failing duty does not try before its back-off."""

        def after_back_off(duty: str, at: datetime | None) -> datetime | None:
            return None if at is None else max(at, now + self.duties.wait(duty, now))

        at = after_back_off(END_PAUSES, pending.pause_ends_at)
        return replace(pending, pause_ends_at=at)

    def _end_pauses(self, now: datetime) -> int:
        # A late import: few schedules are paused until an instant.
        from celery_dynbeat.beat.pauses import end_pauses  # noqa: PLC0415

        settings = self._settings.for_pass()

        def resume(part: Part) -> int:
            return self._database.run(partial(end_pauses, now=now, settings=settings, part=part))

        return self._resumes.run(resume, now=now) or 0

    def _plan_unplanned(self, now: datetime) -> int:
        settings = self._settings.for_pass()

        def plan(part: Part) -> int:
            return self._database.run(
                partial(plan_unplanned, now=now, settings=settings, part=part)
            )

        return self._plans.run(plan, now=now) or 0

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
            held_until=now if self._is_held else self._held_until,
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
            self._admission.expect()
        self._add_costly_owners(claimed.costly_owners, now)
        self._termination.request(claimed.terminate)
        return self._send(claimed, BatchKind.DUE)

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
            self._admission.expect()
        return self._send(swept, BatchKind.OVERDUE)

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

    def _send(self, taken: _Taken, kind: BatchKind) -> int:
        """Wait for the last confirm, publish the runs, and start their confirm.

        If the last confirm failed, its error is raised after the runs are sent: publishing needs no
        database, and the runs are due. Returns the number of handled rows.
        """
        outgoing = taken.outgoing
        if not outgoing:
            return taken.handled
        last_error = self._confirms.last_error()
        published = self._publish(outgoing)
        self._confirms.start(outgoing, published)
        self._emit_published(outgoing, published, kind)
        if last_error is not None:
            raise last_error
        return taken.handled

    def _publish(self, outgoing: Sequence[OutgoingRun]) -> PublishResult:
        published = self._publisher.publish(outgoing)
        self._failpoint("published")
        # Write the error before the confirm, so that the schedule has it even if beat dies in
        # between.
        for run in (run for run in outgoing if run.run_id in published.refused):
            try:
                self._quarantine(run, published.refused[run.run_id])
            except RowLockedError:
                # The run stays pending, and the sweep publishes it again.
                del published.refused[run.run_id]
        return published

    def _quarantine(self, run: OutgoingRun, error: DispatchError) -> None:
        quarantined = events.ScheduleQuarantined(
            schedule_id=run.schedule_id,
            owner=run.owner,
            schedule=run.name,
            error=f"{type(error).__name__}: {error}",
            at=self._clock.now(),
        )
        quarantine = partial(due.quarantine, schedule_id=run.schedule_id, version=run.version)
        unpublishable = events.RunUnpublishable(
            run_id=run.run_id,
            owner=run.owner,
            schedule=run.name,
            attempt=run.attempt + 1,
            error=str(error),
        )

        def work(session: Session) -> None:
            if quarantine(session, error=quarantined.error):
                emit_on_commit(session, quarantined)
            emit_on_commit(session, unpublishable)

        # In a separate transaction: a schedule must be locked before its runs.
        self._database.run(work)

    def _emit_published(
        self, outgoing: Sequence[OutgoingRun], published: PublishResult, kind: BatchKind
    ) -> None:
        # If all runs are delayed, the start of the outage is reported.
        if has_listeners(events.RunsSent) and len(published.delayed) < len(outgoing):
            runs = partial(_sent_runs, outgoing, published, self._clock.now())
            event = events.RunsSent(
                runs=events.SentRuns(runs),
                kind=kind,
                claimed=len(outgoing),
                sent=len(published.sent),
            )
            emit(event)
        if published.declined and has_listeners(events.RunDeclined):
            for run in (run for run in outgoing if run.run_id in published.declined):
                emit(_declined(run, published.declined[run.run_id]))
        if (published.refused or published.delayed) and has_listeners(events.PublishFailed):
            for run in outgoing:
                is_refused = run.run_id in published.refused
                if is_refused or run.run_id in published.delayed:
                    emit(_publish_failed(run, permanent=is_refused))


def _sent_runs(
    outgoing: Sequence[OutgoingRun], published: PublishResult, now: datetime
) -> Sequence[events.SentRun]:
    ids = set(published.sent)
    return [
        events.SentRun(
            run_id=run.run_id,
            owner=run.owner,
            schedule=run.name,
            task=run.task,
            attempt=run.attempt + 1,
            queue=published.queues.get(run.run_id),
            scheduled_for=run.scheduled_for,
            lag=lag_of(sent_at=now, due_at=run.scheduled_for, ready_at=run.ready_at),
            origin=run.origin,
            sent_before=run.unstarted_since is not None or run.attempt > 0,
        )
        for run in outgoing
        if run.run_id in ids
    ]


def _declined(run: OutgoingRun, reason: str) -> events.RunDeclined:
    return events.RunDeclined(
        run_id=run.run_id,
        owner=run.owner,
        schedule=run.name,
        task=run.task,
        attempt=run.attempt + 1,
        reason=reason,
    )


def _publish_failed(run: OutgoingRun, *, permanent: bool) -> events.PublishFailed:
    return events.PublishFailed(
        run_id=run.run_id,
        owner=run.owner,
        schedule=run.name,
        task=run.task,
        permanent=permanent,
    )
