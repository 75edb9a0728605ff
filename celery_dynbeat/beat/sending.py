"""Send the runs that a pass took: publish them, confirm them, and report both.

A run that no broker accepts quarantines its schedule before the confirm, so that the schedule has
the error even if beat dies in between.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from celery_dynbeat.beat.confirms import Confirms
from celery_dynbeat.broker.publisher import PublishResult, RunPublisher
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.states import lag_of
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store.schedules import due
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners
from celery_dynbeat.telemetry.events import BatchKind


class Sender:
    """Sends the runs of one beat, batch by batch."""

    def __init__(
        self,
        *,
        database: Database,
        publisher: RunPublisher,
        confirms: Confirms,
        clock: Clock,
        failpoint: Callable[[str], None],
    ) -> None:
        self._database, self._publisher, self._confirms = database, publisher, confirms
        self._clock, self._failpoint = clock, failpoint

    def send(self, outgoing: Sequence[OutgoingRun], kind: BatchKind) -> None:
        """Wait for the last confirm, publish the runs, and start their confirm.

        If the last confirm failed, its error is raised after the runs are sent: publishing needs no
        database, and the runs are due.
        """
        if not outgoing:
            return
        last_error = self._confirms.last_error()
        published = self._publish(outgoing)
        self._confirms.start(outgoing, published)
        self._emit_published(outgoing, published, kind)
        if last_error is not None:
            raise last_error

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
            fire_at=run.fire_at,
            lag=lag_of(sent_at=now, due_at=run.fire_at, ready_at=run.ready_at),
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
